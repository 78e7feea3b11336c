"""thinwire at work on a DDP model: what attach() returns."""

import weakref
from typing import Any, NoReturn, Protocol

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
        self._in_step = False  # from the first bucket, whichever DDP hands over first, to the end of the backward pass
        self._loss_scale = 1.0
        self._dense_forms = DenseForms()
        self._jobs: list[BucketJob] = []  # of the backward pass under way
        self._close_lanes = weakref.finalize(ddp_model, lanes.close)

    def average(self, bucket: dist.GradBucket) -> Future:
        """Sends a bucket on its way to the mean, which replaces its gradients, in their dtype."""
        if not self._in_step:
            self._begin_step()
        buffer = bucket.buffer()
        if self._world_size == 1:
            return _done(buffer)
        parameters = self._parameters.indices(bucket.parameters())
        reducer = self._reducer if self._parameters.suit_the_reducer(parameters) else None
        sparse = SparseBucket(buffer, parameters[0], self._dense_forms) if buffer.is_sparse else None
        job = BucketJob(reducer, sparse.flat if sparse else buffer, parameters, self._loss_scale, sparse)
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
        with NaN or infinity on some worker); seconds of each phase, summed over lanes: setup, encode, wire, decode. A quotient that is
        undefined is None.
        """
        return statistics.figures(self._lanes.plain_sums.added_to(self._reducer.counters()), self._steps)

    def __str__(self) -> str:
        specs = sorted(set(self._reducer.compressors))
        return statistics.table(f"thinwire on {len(self._parameters.names)} parameters: {', '.join(specs)}", self.stats())

    def state_dict(self, *, all_ranks: bool | None = None) -> dict[str, Any]:
        """What training must remember to continue: residuals, compressors' memories, steps.

        all_ranks=True: all workers call this together, and each gets the state of all, so that one of them can save it; it also
        loads into another number of workers. all_ranks=False: this worker's own, which nobody else can load; every worker must
        save its own. Workers that are not alone must say which. torch.load(weights_only=True) reads both.

        Not during a backward pass; after one that failed, it waits until no lane waits for a peer any more, and what failed has
        left no trace. Raises StateError.
        """
        if all_ranks is None and self._world_size > 1:
            raise _native.StateError(
                f"each of the {self._world_size} workers has residuals of its own, and a checkpoint of one of them would lose the others'. "
                "Call state_dict(all_ranks=True) on all workers and save what one of them gets; or save state_dict(all_ranks=False) on every "
                "worker in a file of its own; or give attachment.all_ranks to what saves by itself (torch.distributed.checkpoint, accelerate)"
            )
        self._wait_for_lanes()
        steps = self._earlier_steps + self._steps
        own = checkpoint.pack(self._reducer.state(), self._terms, self._rank, self._world_size, steps)
        if not all_ranks:
            return own
        states: list[Any] = [None] * self._world_size
        dist.all_gather_object(states, own, group=self._group)
        return checkpoint.pack_all(states)

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
        self._wait_for_lanes()
        rows, steps = checkpoint.unpack(state, self._terms, self._rank, self._world_size)
        self._reducer.load_state(rows)
        self._earlier_steps = steps - self._steps

    def close(self) -> None:
        """Ends the lanes. DDP cannot drop a hook: the next forward pass that wants gradients raises, unless attach() is called again."""
        self._close_lanes()
        model = self._model()
        slot = None if model is None else slot_of(model)
        if slot is not None and slot.attachment is self:
            failed = self._lanes.failure.error is not None
            slot.empty(model, "thinwire failed on this model, and DDP cannot recover from that; wrap the module in a new DDP" if failed else None)

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

    def _begin_step(self) -> None:
        self.check_usable()
        self._loss_scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        self._jobs = []
        self._in_step = True
        # Called before DDP's own callback, which would turn every exception into a RuntimeError. (In a static graph's
        # first iteration DDP comes first, and does.)
        Variable._execution_engine.queue_callback(self._finish_step)

    def _finish_step(self) -> None:
        self._in_step = False
        with RecordFunction("thinwire::wait"):
            for job in self._jobs:
                job.wait()
                job.result()
        self._jobs = []
        self._steps += 1

    def _wait_for_lanes(self) -> None:
        """After a failure: the first error ended the backward pass, and other lanes may be at work still."""
        for job in self._jobs:
            job.wait()


def _done(bucket: torch.Tensor) -> Future:
    future: Future = torch.futures.Future(devices=[] if bucket.device.type == "cpu" else [bucket.device])
    future.set_result(bucket)
    return future
