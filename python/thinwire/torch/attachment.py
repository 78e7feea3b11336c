"""thinwire at work on a DDP model: what attach() returns."""

import math
import weakref
from typing import Any, NoReturn, Protocol, overload

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch._C._profiler import _RecordFunctionFast as RecordFunction
from torch.nn.parallel import DistributedDataParallel

from thinwire import _native
from thinwire.torch import checkpoint, statistics
from thinwire.torch.all_ranks_state import AllRanksState
from thinwire.torch.hook_slot import slot_of
from thinwire.torch.lanes import BucketJob, Lanes
from thinwire.torch.model_parameters import ModelParameters
from thinwire.torch.sparse_bucket import DenseForms, SparseBucket

Future = torch.futures.Future[torch.Tensor]


class Scaler(Protocol):
    """torch.amp.GradScaler, or what has its scale."""

    def get_scale(self) -> float: ...


class Attachment:
    """thinwire at work on one DDP model. Made by attach(); works until close() or until the model is gone."""

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        parameters: ModelParameters,
        reducer: _native.Reducer,
        lanes: Lanes,
        scaler: Scaler | None,
        terms: dict[str, Any],
    ):
        # The model holds the hook, and so the attachment, from C++, where no garbage collector looks.
        self._model = weakref.ref(ddp_model)
        self._group = ddp_model.process_group
        self._parameters = parameters
        self._reducer = reducer
        self._lanes = lanes
        self._scaler = scaler
        self._terms = terms
        self._rank, self._world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._steps = 0  # since attach()
        self._earlier_steps = 0  # of the run whose state was loaded
        self._backward: int | None = None  # the step's, from whichever bucket DDP hands over first to its end
        self._loss_scale = 1.0
        self._dense_forms = DenseForms()
        self._jobs: list[BucketJob] = []  # of the backward pass under way
        self._close_lanes = weakref.finalize(ddp_model, lanes.close)

    def average(self, bucket: dist.GradBucket) -> Future:
        """Sends a bucket on its way to the mean, which replaces its gradients, in their dtype."""
        self._enter_step()
        buffer = bucket.buffer()
        if self._world_size == 1:
            return _done(buffer)
        parameters = self._parameters.indices(bucket.parameters())
        is_plain = not self._parameters.suit_the_reducer(parameters)
        sparse = SparseBucket(buffer, parameters[0], self._dense_forms) if buffer.is_sparse else None
        job = BucketJob(self._reducer, is_plain, sparse.flat if sparse else buffer, parameters, self._loss_scale, sparse)
        self._jobs.append(job)
        self._lanes.submit(bucket.index(), job)
        return job.future

    @property
    def compressors(self) -> dict[str, str]:
        """The spec by which each parameter travels."""
        return dict(zip(self._parameters.names, self._reducer.compressors, strict=True))

    @property
    def lanes(self) -> int:
        """How many buckets travel at once; none of a worker that is alone."""
        return len(self._lanes)

    def stats(self) -> dict[str, Any]:
        """This worker's figures since attach().

        steps; reductions (of buckets); rounds (collectives); setup_bytes, payload_bytes, second_bytes (first and second
        encodings); traffic_bytes (sent, by the collectives' standard algorithms); plain_bytes (what ring all-reduce would
        have sent uncompressed); ratio = plain_bytes / traffic_bytes; compressed_share (of the elements);
        compression_error = |encoded - decoded|^2 / |encoded|^2 where it was measured; row_bytes (of traffic_bytes, what
        compressors of sparse rows sent); fallbacks (messages so dense that these sent them uncompressed); non_finite (buckets
        with NaN or infinity on some worker); failed_steps; seconds of each phase, summed over lanes: setup, encode, wire, decode. A quotient that is
        undefined is None.
        """
        return statistics.figures(self._lanes.plain_sums.added_to(self._reducer.counters()), self._steps)

    def __str__(self) -> str:
        specs = sorted(set(self._reducer.compressors))
        return statistics.table(f"thinwire on {len(self._parameters.names)} parameters: {', '.join(specs)}", self.stats())

    @overload
    def state_dict(self, *, all_ranks: bool | None = None, to: None = None) -> dict[str, Any]: ...
    @overload
    def state_dict(self, *, all_ranks: bool | None = None, to: int) -> dict[str, Any] | None: ...

    def state_dict(self, *, all_ranks: bool | None = None, to: int | None = None) -> dict[str, Any] | None:
        """What training must remember to continue: residuals, compressors' memories, steps.

        all_ranks=True: all workers call this together, and each gets the state of all, so that one of them can save it; it also
        loads into another number of workers. With to=RANK, of the model's process group and the same on all workers, that one alone
        gets it; the others get None and hold no more than their own. all_ranks=False: this worker's own, which nobody else can load; every
        worker must save its own. Workers that are not alone must say which. torch.load(weights_only=True) reads both.

        Not during a backward pass; after one that failed, it waits until no lane waits for a peer any more, and what failed has
        left no trace. Raises StateError, and ArgumentError for a ``to`` that is no such rank.
        """
        if to is not None:
            self._check_receiver(to, all_ranks)
        if all_ranks is None and self._world_size > 1:
            raise _native.StateError(
                f"each of the {self._world_size} workers has residuals of its own, and a checkpoint of one of them would lose the "
                "others'. Call state_dict(all_ranks=True) on all workers and save what one of them gets (with to=0 rank 0 alone); or save "
                "state_dict(all_ranks=False) on every worker in a file of its own; or give attachment.all_ranks to what saves by itself "
                "(torch.distributed.checkpoint, accelerate)"
            )
        self._settle()
        steps = self._earlier_steps + self._steps
        own = checkpoint.pack(self._reducer.state(), self._terms, self._rank, self._world_size, steps)
        if not all_ranks:
            return own
        states: list[Any] = [None] * self._world_size
        if to is None:
            dist.all_gather_object(states, own, group=self._group)
            return checkpoint.pack_all(states)
        receives = to == self._rank
        dist.gather_object(own, states if receives else None, dst=dist.get_global_rank(self._group, to), group=self._group)
        return checkpoint.pack_all(states) if receives else None

    @property
    def all_ranks(self) -> AllRanksState:
        """For frameworks that save what has state_dict() and load_state_dict(), and call them on all workers."""
        return AllRanksState(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from this worker's own state, or from its part of the state of all ranks.

        Residuals of another number of workers (all_ranks only) are replaced by their mean on every worker. A worker that is
        alone keeps residuals for later, as it sends nothing. Raises StateError, and changes nothing, when the state was saved
        with other parameters, specs, seed, or as another rank.

        What travels in all-gather or all-to-all (CASQ, and QSGD by default) continues with the same bits. Floats that are
        all-reduced ("none", "bf16", small parameters) do so with two workers; with more, the order in which the backend sums
        them depends on their place in DDP's buckets, which DDP orders anew after a run's first step, so that the last bits of
        the first step's sums may differ, as they do under plain DDP.
        """
        self._settle()
        rows, steps = checkpoint.unpack(state, self._terms, self._rank, self._world_size)
        self._reducer.load_state(rows)
        self._earlier_steps = steps - self._steps

    def close(self) -> None:
        """Ends the lanes. DDP cannot drop a hook: the next forward pass that wants gradients raises, unless attach() is called
        again."""
        self._close_lanes()
        model = self._model()
        slot = None if model is None else slot_of(model)
        if slot is not None and slot.attachment is self:
            failed = "thinwire failed on this model, and DDP cannot recover from that; wrap the module in a new DDP"
            slot.empty(model, failed if self._lanes.failure.error is not None else None)

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Attachment can be neither copied nor pickled; save its state_dict() and load that into a new one")

    def check_usable(self) -> None:
        """Raises StateError after close() or a failure, or when the model has another process group."""
        if not self._close_lanes.alive:
            raise _native.StateError("this attachment is closed")
        if (error := self._lanes.failure.error) is not None:
            raise _native.StateError(
                f"this attachment is of no further use, since it failed ({type(error).__name__}: {error}). Restart from a checkpoint"
            ) from error
        model = self._model()
        if model is not None and model.process_group is not self._group:
            raise _native.StateError("the model has another process group than when thinwire was attached; close() and attach() again")

    def _check_receiver(self, to: Any, all_ranks: bool | None) -> None:
        if not all_ranks:
            raise _native.ArgumentError(f"to = {to!r} with all_ranks = {all_ranks!r}; allowed: with all_ranks=True, which gathers states")
        if not isinstance(to, int) or isinstance(to, bool) or not 0 <= to < self._world_size:
            raise _native.ArgumentError(
                f"to = {to!r}; allowed: a rank of the model's process group, from 0 to {self._world_size - 1}, or None for every worker"
            )

    def _enter_step(self) -> None:
        """With the first bucket of a backward pass."""
        backward = torch._C._current_graph_task_id()
        if self._backward == backward:
            return
        self.check_usable()
        self._settle()
        self._loss_scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        self._jobs = []
        self._backward = backward
        self._reducer.begin_step()
        # Called before DDP's own callback, which would turn every exception into a RuntimeError. (In a static graph's
        # first iteration DDP comes first, and does.)
        Variable._execution_engine.queue_callback(self._finish_backward)

    def _finish_backward(self) -> None:
        with RecordFunction("thinwire::wait"):
            self._wait_for_lanes()
        jobs, committed = self._jobs, self._end_step()
        for job in jobs:
            job.check()
        if not committed and self._scaler is None:
            self._void_means(jobs)
        self._steps += 1

    def _end_step(self) -> bool:
        """Commits what the step has changed, or drops it. No lane is at work on it."""
        self._backward = None
        committed = self._reducer.end_step()
        for job in self._jobs:
            if job.sparse is not None:
                job.sparse.release(committed)
        self._jobs = []
        return committed

    def _void_means(self, jobs: list[BucketJob]) -> None:
        """Nobody looks whether gradients are finite, perhaps: a NaN in every parameter's mean tells an optimizer's update that the
        step has failed. What the means held goes out again with the next one."""
        for job in jobs:
            if job.sparse is not None:
                job.sparse.mean._values().view(-1)[:1] = math.nan
                continue
            begin = 0
            for parameter in job.parameters:
                elements = self._parameters.elements[parameter]
                job.bucket[begin : begin + min(elements, 1)] = math.nan
                begin += elements
        model = self._model()
        # A static graph's first iteration has copied the buckets already.
        for parameter in model.parameters() if model is not None else ():
            if parameter.requires_grad and parameter.grad is not None:
                gradient = parameter.grad
                (gradient._values() if gradient.is_sparse else gradient).view(-1)[:1] = math.nan

    def _wait_for_lanes(self) -> None:
        for job in self._jobs:
            job.wait()

    def _settle(self) -> None:
        """After a backward pass that ended in an exception: other lanes may be at work still, and its step has not ended."""
        self._wait_for_lanes()
        if self._backward is not None:
            self._end_step()


def _done(bucket: torch.Tensor) -> Future:
    future: Future = torch.futures.Future(devices=[] if bucket.device.type == "cpu" else [bucket.device])
    future.set_result(bucket)
    return future
