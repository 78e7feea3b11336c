"""thinwire at work on a module that fully_shard() has prepared: what attach() returns for one."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from thinwire import _native
from thinwire.torch.agreement import Scaler
from thinwire.torch.averager import Averager
from thinwire.torch.fully_sharded import FullyShardedModel, ShardGroup
from thinwire.torch.lanes import BucketJob, Lanes, is_finite
from thinwire.torch.model_parameters import REDUCERS_TYPES, TravellingParameters


class ShardAttachment(Averager):
    """thinwire at work on one FSDP2 module. Made by attach(); works until close() or until the module is gone.

    FSDP wants a reduction's result when it asks for it, so that a group of parameters is compressed, sent and averaged while the backward
    pass waits. A step lasts from the first group that is reduced in a backward pass to the pass's end.
    """

    _called = "attachment"

    def __init__(
        self,
        sharded: FullyShardedModel,
        group: dist.ProcessGroup,
        parameters: TravellingParameters,
        reducer: _native.Reducer,
        lanes: Lanes,
        scaler: Scaler | None,
        terms: dict[str, Any],
        spec: str,
    ):
        super().__init__(group, parameters, reducer, lanes, terms, spec, owner=sharded.model)
        self._groups = sharded.groups
        self._scaler = scaler
        self._loss_scale = 1.0
        self._backward: int | None = None  # the last pass whose end is to call _finish_backward()
        self._seen: set[int] | None = None  # parameters that were reduced in the step at hand; None: no step is
        self._step_failed = False
        self._jobs: list[BucketJob] = []  # of the reduction at hand
        for shard_group in self._groups:
            shard_group.watch()

    @property
    def lanes(self) -> int:
        """How many parts of a group of parameters travel at once, at most; none of a worker that is alone."""
        return len(self._lanes)

    def close(self) -> None:
        """Ends the lanes; FSDP reduces gradients by itself again."""
        if self._close_lanes.alive:
            for group in self._groups:
                group.unwatch()
                self._unplug(group)
        super().close()

    def _unplug(self, group: ShardGroup) -> None:
        raise NotImplementedError

    def _agree(self, failed: bool) -> bool:
        """Whether the step has failed on any worker of the mesh, all of which call this."""
        raise NotImplementedError

    def _fail(self, error: BaseException) -> None:
        """Leaves all groups, so that no peer waits for the timeout."""
        self._lanes.failure.set(error)

    def _reduce(self, buckets: list[tuple[torch.Tensor, list[int]]]) -> None:
        """Averages flat buckets, each of them of whole parameters; in the course of a backward pass."""
        self._enter_step({index for _, indices in buckets for index in indices})
        if self._world_size == 1:
            return
        for bucket, indices in buckets:
            self._jobs.append(BucketJob(self._reducer, bucket.dtype not in REDUCERS_TYPES, bucket, indices, self._loss_scale))
            self._lanes.submit(len(self._jobs) - 1, self._jobs[-1])
        self._wait_for_jobs()
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            if job.error is not None:
                self._fail(job.error)
            job.check()
            # A bucket whose mean is not finite is NaN all over, unless it was summed as it is.
            self._step_failed |= not is_finite(job.bucket if job.is_plain else job.bucket[:1])

    def _enter_step(self, indices: set[int]) -> None:
        backward: int = torch._C._current_graph_task_id()
        if backward < 0:
            raise _native.ArgumentError(
                "FSDP reduces gradients outside of a backward pass, as pipeline schedules do, and thinwire needs the pass's end to know "
                "which gradients are a step. Train without the pipeline, or close() the attachment"
            )
        self.check_usable()
        # Nested passes (reentrant checkpoints) are steps of their own, and so is a group's second reduction in a pass.
        if self._seen is not None and (backward != self._backward or not self._seen.isdisjoint(indices)):
            self._end_step()
        if self._seen is None:
            self._loss_scale = self._scaler.get_scale() if self._scaler is not None else 1.0
            self._reducer.begin_step()
            self._seen = set()
        self._seen |= indices
        if self._backward != backward:
            self._backward = backward
            # FSDP's own callback comes first, and reduces what nothing else did.
            Variable._execution_engine.queue_callback(self._finish_backward)

    def _finish_backward(self) -> None:
        self._backward = None
        if self._seen is not None:
            self._end_step()

    def _end_step(self) -> None:
        """Commits what the step has changed, or drops it: on all workers of the mesh alike."""
        failed, self._step_failed = self._step_failed, False
        if self._world_size > 1:
            try:
                failed = self._agree(failed)
            except _native.PeerError as error:
                self._fail(error)
                raise
        self._seen = None
        if failed:
            self._reducer.fail_step()
        if not self._reducer.end_step():
            self._void_gradients()
        self._steps += 1

    @torch.no_grad()
    def _void_gradients(self) -> None:
        """Perhaps nobody looks whether gradients are finite, and another worker's shards may be where they are not: a NaN in every shard
        tells the optimizer's update, or this worker's scaler, that the step has failed."""
        for group in self._groups:
            for gradient in group.gradients():
                gradient.reshape(-1)[:1] = math.nan

    def _wait_for_jobs(self) -> None:
        for job in self._jobs:
            job.wait()

    def _settle(self) -> None:
        """After a backward pass that ended in an exception the reducer's step has not ended. What it has changed is dropped."""
        self._wait_for_jobs()
        self._jobs = []
        if self._seen is not None:
            self._seen, self._step_failed = None, False
            self._reducer.fail_step()
            self._reducer.end_step()
