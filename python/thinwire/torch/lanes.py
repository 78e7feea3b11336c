"""Lanes: threads that average buckets, each with a process group of its own.

Engines match collectives by the order in which every worker issues them. A bucket needs several, one after the other, so
a bucket goes to the same lane on every worker, and a lane finishes it before it begins the next.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from thinwire import _native
from thinwire.torch.group_communicator import GroupCommunicator
from thinwire.torch.host_stage import HostStage, ready_event
from thinwire.torch.sparse_bucket import SparseBucket

_PATIENCE_AT_CLOSE = 1.0  # seconds for a lane that still waits for its peers


@dataclass
class BucketJob:
    """One bucket's way through a lane."""

    reducer: _native.Reducer
    bucket: torch.Tensor  # flat; holds whole parameters, one behind the other
    parameters: list[int]  # their indices in the reducer's layout
    loss_scale: float
    sparse: SparseBucket | None = None  # of which `bucket` is the dense form
    ready: torch.cuda.Event | None = None
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.ready = ready_event(self.bucket)
        devices = [] if self.bucket.device.type == "cpu" else [self.bucket.device]
        self._signal: torch.futures.Future[None] = torch.futures.Future(devices=devices)
        # What DDP waits for in C++; only an exception out of then() reaches it as an error.
        self.future: torch.futures.Future[torch.Tensor] = self._signal.then(lambda _: self.result())

    def result(self) -> torch.Tensor:
        """The bucket with the mean; raises what went wrong. Only after the job is done."""
        if self.error is not None:
            raise self.error
        return self.bucket if self.sparse is None else self.sparse.mean

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self.done.set()
        self._signal.set_result(None)


class Failure:
    """The first thing that went wrong on this worker; no lane does anything after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        self.lanes: list[Lane] = []  # which all leave their groups then

    def set(self, error: BaseException) -> None:
        with self._lock:
            if self.error is not None:
                return
            self.error = error
        for lane in self.lanes:
            lane.leave()

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class Lane:
    """A thread that averages its buckets one after another."""

    def __init__(self, index: int, group: dist.ProcessGroup, failure: Failure):
        self.index = index
        self.group: dist.ProcessGroup | None = group
        self._communicator: GroupCommunicator | None = GroupCommunicator(group)
        self._failure = failure
        self._stage = HostStage()
        self._jobs: queue.SimpleQueue[BucketJob | Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"thinwire-lane-{index}", daemon=True)
        self._thread.start()

    def submit(self, job: BucketJob) -> None:
        self._jobs.put(job)

    def leave(self) -> None:
        """This worker has failed: so that peers need not wait for the timeout, an idle lane leaves its group too."""
        self._jobs.put(self._leave_group)

    def close(self) -> None:
        """Ends the thread; one that waits for its peers is left behind, to end by the group's timeout."""
        self._jobs.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_AT_CLOSE)
        if not self._thread.is_alive():
            self._leave_group()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not isinstance(job, BucketJob):
                job()
                continue
            error = None
            try:
                self._average(job)
            except BaseException as caught:  # whatever it is, it belongs to the training script
                error = caught
                self._failure.set(error)
                self._leave_group()
            # The first failure explains the others.
            job.finish(error and self._failure.error)
            del job, error  # an idle lane keeps no bucket alive

    def _average(self, job: BucketJob) -> None:
        self._failure.check()
        with self._stage.on_host(job.bucket, job.ready) as bucket:
            self.run(job.reducer.reduce(bucket, job.parameters, self.index, job.loss_scale))
        if job.sparse is not None:
            job.sparse.take_mean()

    def run(self, reduction: _native.Reduction) -> None:
        """In the caller's thread."""
        with closing(reduction):
            while (collective := reduction.next()) is not None:
                self._failure.check()
                self._perform(collective)

    def _perform(self, collective: _native.Collective) -> None:
        try:
            self._communicator.perform(collective)
        except RuntimeError as error:
            raise _native.PeerError(
                f"lane {self.index}: {collective.kind} failed; another worker is lost, later than the timeout or has failed. "
                f"The backend says: {error}"
            ) from error

    def _leave_group(self) -> None:
        """Closes the connections, so that the peers of this lane fail at once instead of waiting for the timeout."""
        group, self.group, self._communicator = self.group, None, None
        if group is not None:
            try:
                dist.destroy_process_group(group)
            except (ValueError, RuntimeError, AssertionError):
                pass  # the script has destroyed all groups already


class Lanes:
    """All lanes of a worker. Made, and added to, by all workers together, in the same order."""

    def __init__(self, group: dist.ProcessGroup, timeout: timedelta, backend: str | None):
        self.failure = Failure()
        self._group, self._timeout, self._backend = group, timeout, backend
        self._lanes: list[Lane] = []
        self.failure.lanes = self._lanes

    def __len__(self) -> int:
        return len(self._lanes)

    def grow(self, count: int) -> None:
        """To so many, before the first bucket."""
        while len(self._lanes) < count:
            self._lanes.append(Lane(len(self._lanes), _new_group_like(self._group, self._timeout, self._backend), self.failure))

    def run(self, reduction: _native.Reduction) -> None:
        """In the first lane, but in the caller's thread; on all workers, before the first bucket."""
        self._lanes[0].run(reduction)

    def submit(self, index: int, job: BucketJob) -> None:
        """Bucket ``index`` goes to the same lane on every worker."""
        self._lanes[index % len(self._lanes)].submit(job)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


def group_terms(group: dist.ProcessGroup) -> dict[str, int]:
    """What workers must have in common for torch to make them further groups: it names the groups of a part of the world by
    how many a worker has, and workers that look for different names wait for each other in vain."""
    return {"process groups so far": len(dist.distributed_c10d._world.pg_names)} if _is_part_of_world(group) else {}


def _is_part_of_world(group: dist.ProcessGroup) -> bool:
    return dist.get_world_size(group) < dist.get_world_size()


def _new_group_like(group: dist.ProcessGroup, timeout: timedelta, backend: str | None) -> dist.ProcessGroup:
    """Another group of the same workers; those outside it do not take part."""
    return dist.new_group(
        dist.get_process_group_ranks(group),
        timeout=timeout,
        backend=backend or _backend_of(group),
        use_local_synchronization=_is_part_of_world(group),
    )


def _backend_of(group: dist.ProcessGroup) -> str:
    """In the form new_group() takes: one name where all devices have the same."""
    config = dist.get_backend_config(group)
    names = {entry.partition(":")[2] for entry in config.split(",")}
    return names.pop() if len(names) == 1 else config
