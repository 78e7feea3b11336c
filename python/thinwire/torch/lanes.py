"""Lanes: threads that average buckets, each with a process group of its own.

Engines match collectives by the order in which every worker issues them. A bucket needs several, one after the other, so
a bucket goes to the same lane on every worker, and a lane finishes it before it begins the next.
"""

import math
import queue
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C._profiler import _RecordFunctionFast as RecordFunction
from torch.utils.dlpack import to_dlpack

from thinwire import _native
from thinwire.torch.group_communicator import GroupCommunicator
from thinwire.torch.host_copies import HostCopies, ready_event
from thinwire.torch.lane_groups import LaneGroup, LaneGroups
from thinwire.torch.plain_sums import PlainSums
from thinwire.torch.sparse_bucket import SparseBucket

_PATIENCE_AT_CLOSE = 1.0  # seconds for a lane that still waits for its peers


@dataclass
class BucketJob:
    """One bucket's way through a lane."""

    reducer: _native.Reducer
    is_plain: bool  # the bucket is summed as it is
    bucket: torch.Tensor  # flat; holds whole parameters, one behind the other
    parameters: list[int]  # their indices in the reducer's layout
    loss_scale: float
    looks: bool = True  # whether anybody is to know that a plain sum is not finite
    sparse: SparseBucket | None = None  # of which `bucket` is the dense form
    ready: torch.cuda.Event | None = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.ready = ready_event(self.bucket)
        self._at_work = threading.Lock()  # held until it is done; an Event takes several times as long to make
        self._at_work.acquire()
        # What DDP waits for in C++. Of errors it tells nothing: the backward pass ends with check().
        self.future = new_future(self.bucket)

    def wait(self) -> None:
        """Until it is done, well or badly."""
        with self._at_work:
            pass

    def check(self) -> None:
        """Raises what went wrong. Only after the job is done."""
        if self.error is not None:
            raise self.error

    def finish(self, error: BaseException | None = None) -> None:
        self.error = error
        self._at_work.release()
        self.future.set_result(self.bucket if self.sparse is None else self.sparse.mean)


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

    def __init__(self, index: int, groups: LaneGroup, failure: Failure, plain_sums: PlainSums):
        self.index = index
        self._plain_sums = plain_sums
        self.group: dist.ProcessGroup | None = groups.all
        self._parts = groups.parts
        self._connections = groups.connections
        self._communicator: GroupCommunicator | None = GroupCommunicator(groups.all, parts=groups.parts, connections=groups.connections)
        self._failure = failure
        self._copies = HostCopies()
        self._jobs: queue.SimpleQueue[BucketJob | Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"thinwire-lane-{index}", daemon=True)
        self._thread.start()

    @property
    def is_connected(self) -> bool:
        return self._connections is not None

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
        with self._copies.on_host(job.bucket, job.ready) as bucket:
            if job.is_plain:
                self._perform("sum", lambda: self._plain_sums.average(bucket, self._communicator))
                if job.looks and not is_finite(bucket):
                    job.reducer.fail_step()
            else:
                # A capsule, as Tensor.__dlpack__() takes longer than the reducer for a small bucket.
                self.run(job.reducer.reduce(to_dlpack(bucket), job.parameters, self.index, job.loss_scale))
        if job.sparse is not None:
            # Whole before wait() returns: release() and void means come before DDP waits for the future, and perhaps on another stream.
            with self._copies.on_device(job.bucket):
                job.sparse.take_mean()

    def run(self, reduction: _native.Reduction, clock: Callable[[], float] = lambda: 0.0) -> float:
        """In the caller's thread. Returns what its collectives took by the clock."""
        taken = 0.0
        with closing(reduction):
            while (collective := reduction.next()) is not None:
                self._failure.check()
                begin = clock()
                self._perform(collective.kind, lambda: self._communicator.perform(collective))
                taken += clock() - begin
        return taken

    def greatest(self, values: torch.Tensor) -> None:
        """In the caller's thread."""
        self._failure.check()
        self._perform("max", lambda: self._communicator.greatest(values))

    def _perform(self, kind: str, collective: Callable[[], None]) -> None:
        try:
            with RecordFunction(f"thinwire::{kind}"):
                collective()
        except RuntimeError as error:
            raise peer_error(f"lane {self.index}: {kind}", error) from error

    def _leave_group(self) -> None:
        """Closes the connections, so that the peers of this lane fail at once instead of waiting for the timeout."""
        if self.group is None:
            return
        if self._connections is not None:
            self._connections.close()
        groups = [self.group, *self._parts.values()]
        self.group, self._communicator, self._parts = None, None, {}
        for group in groups:
            try:
                dist.destroy_process_group(group)
            except (ValueError, RuntimeError, AssertionError):
                pass  # the script has destroyed all groups already


def peer_error(what: str, error: RuntimeError) -> _native.PeerError:
    """For what a backend says of a collective that failed."""
    return _native.PeerError(f"{what} failed; another worker is lost, later than the timeout or has failed. The backend says: {error}")


class Lanes:
    """All lanes of a worker, none at first."""

    def __init__(self, plain_sums: PlainSums):
        self.failure = Failure()
        self.plain_sums = plain_sums
        self._lanes: list[Lane] = []
        self.used: int | None = None  # see use()
        self.failure.lanes = self._lanes

    def __len__(self) -> int:
        return len(self._lanes)

    def use(self, count: int | None) -> None:
        """No more than the first so many, or all; the same on all workers, when no bucket is on its way."""
        self.used = count

    def grow(self, groups: LaneGroups, count: int) -> None:
        """To so many, before the first bucket; by all workers together."""
        before = len(self._lanes)
        while len(self._lanes) < count:
            self._lanes.append(Lane(len(self._lanes), groups.make(), self.failure, self.plain_sums))
        if len(self._lanes) > before:
            # Nobody goes on before all have connected: who closed at once would break the connections that others still make.
            self._lanes[-1].greatest(torch.zeros(1, dtype=torch.float32, device="cpu"))

    @property
    def are_connected(self) -> bool:
        """By themselves, not through the backend."""
        return bool(self._lanes) and self._lanes[0].is_connected

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Of the first lane; None after a failure."""
        return self._lanes[0].group

    def run(self, reduction: _native.Reduction) -> float:
        """In the first lane, but in the caller's thread; on all workers, before the first bucket. Returns what its collectives had of the
        processor, in seconds of all the process's threads."""
        return self._lanes[0].run(reduction, time.process_time)

    def greatest(self, numbers: list[float]) -> list[float]:
        """Of all workers' numbers, one by one, as float32; infinities too, but no NaN. As run(), when no bucket is on its way."""
        values = torch.tensor(numbers, dtype=torch.float32, device="cpu")
        self._lanes[0].greatest(values)
        return values.tolist()

    def seconds_of_greatest(self, elements: int) -> float:
        """That as many float32 take which all workers exchange, once all are there. As greatest()."""
        values = torch.zeros(elements, dtype=torch.float32, device="cpu")
        self._lanes[0].greatest(values[:1])
        begin = time.perf_counter()
        self._lanes[0].greatest(values)
        return time.perf_counter() - begin

    def submit(self, index: int, job: BucketJob) -> None:
        """Bucket ``index`` goes to the same lane on every worker."""
        used = len(self._lanes) if self.used is None else min(self.used, len(self._lanes))
        self._lanes[index % used].submit(job)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


def new_future(bucket: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Whose result will be on the bucket's device."""
    return torch.futures.Future(devices=[] if bucket.device.type == "cpu" else [bucket.device])


def is_finite(bucket: torch.Tensor) -> bool:
    return bucket.numel() == 0 or bool(torch.isfinite(torch.linalg.vector_norm(bucket, math.inf)))
