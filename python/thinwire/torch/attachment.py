"""thinwire at work on a DDP model: what attach() returns."""

import math
import weakref
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch._C._profiler import _RecordFunctionFast as RecordFunction
from torch.nn.parallel import DistributedDataParallel

from thinwire import _native
from thinwire.torch.averager import Averager
from thinwire.torch.hook_slot import slot_of
from thinwire.torch.lanes import BucketJob, Lanes
from thinwire.torch.model_parameters import ModelParameters
from thinwire.torch.sparse_bucket import DenseForms, SparseBucket

Future = torch.futures.Future[torch.Tensor]


class Scaler(Protocol):
    """torch.amp.GradScaler, or what has its scale."""

    def get_scale(self) -> float: ...


class Attachment(Averager):
    """thinwire at work on one DDP model. Made by attach(); works until close() or until the model is gone."""

    _called = "attachment"

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        parameters: ModelParameters,
        reducer: _native.Reducer,
        lanes: Lanes,
        scaler: Scaler | None,
        terms: dict[str, Any],
    ):
        super().__init__(ddp_model.process_group, parameters, reducer, lanes, terms, owner=ddp_model)
        # The model holds the hook, and so the attachment, from C++, where no garbage collector looks.
        self._model = weakref.ref(ddp_model)
        self._scaler = scaler
        self._backward: int | None = None  # the step's, from whichever bucket DDP hands over first to its end
        self._loss_scale = 1.0
        self._dense_forms = DenseForms()
        self._jobs: list[BucketJob] = []  # of the backward pass under way

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
        return super().stats()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from this worker's own state, or from its part of the state of all ranks: see Averager.load_state_dict().

        What travels in all-gather or all-to-all (CASQ, and QSGD by default) continues with the same bits. Floats that are
        all-reduced ("none", "bf16", small parameters) do so with two workers; with more, the order in which the backend sums
        them depends on their place in DDP's buckets, which DDP orders anew after a run's first step, so that the last bits of
        the first step's sums may differ, as they do under plain DDP.
        """
        super().load_state_dict(state)

    def close(self) -> None:
        """Ends the lanes. DDP cannot drop a hook: the next forward pass that wants gradients raises, unless attach() is called
        again."""
        super().close()
        model = self._model()
        slot = None if model is None else slot_of(model)
        if slot is not None and slot.attachment is self:
            failed = "thinwire failed on this model, and DDP cannot recover from that; wrap the module in a new DDP"
            slot.empty(model, failed if self._lanes.failure.error is not None else None)

    def check_usable(self) -> None:
        """Raises StateError after close() or a failure, or when the model has another process group."""
        super().check_usable()
        model = self._model()
        if model is not None and model.process_group is not self._group:
            raise _native.StateError("the model has another process group than when thinwire was attached; close() and attach() again")

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
