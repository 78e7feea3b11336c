"""Lanes: threads that average parts of buckets, each with a process group of its own.

Engines match collectives by the order in which every worker issues them. A part needs several, one after the other, so
it goes to the same lane on every worker, and a lane finishes it before it begins the next. While one lane waits for the
network another encodes or decodes.
"""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from thinwire import _native
from thinwire.torch.group_communicator import GroupCommunicator
from thinwire.torch.host_stage import HostStage, ready_event

_PATIENCE_AT_CLOSE = 1.0  # seconds for a lane that still waits for its peers
_PART_ELEMENTS = 1 << 20  # enough for a round on the wire to be worth its latency, and few enough for lanes to overlap


@dataclass(frozen=True)
class Part:
    """Whole parameters of a bucket, one behind the other, that a lane averages at a time."""

    job: "BucketJob"
    elements: torch.Tensor  # a part of the bucket
    parameters: list[int]  # their indices in the reducer's layout


class BucketJob:
    """One bucket's way through the lanes."""

    def __init__(self, reducer: _native.Reducer, bucket: torch.Tensor, parameters: list[int], sizes: list[int], loss_scale: float):
        """bucket: flat; holds whole parameters of these sizes, one behind the other."""
        self.reducer = reducer
        self.bucket = bucket
        self.loss_scale = loss_scale
        self.ready = ready_event(bucket)
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.parts = list(self._cut(parameters, sizes))
        self._lock = threading.Lock()
        self._parts_left = len(self.parts)
        devices = [] if bucket.device.type == "cpu" else [bucket.device]
        self._signal: torch.futures.Future[None] = torch.futures.Future(devices=devices)
        # What DDP waits for in C++; only an exception out of then() reaches it as an error.
        self.future: torch.futures.Future[torch.Tensor] = self._signal.then(lambda _: self.result())

    def _cut(self, parameters: list[int], sizes: list[int]) -> Iterator[Part]:
        begin = end = first = 0
        for position, size in enumerate(sizes):
            end += size
            if end - begin >= _PART_ELEMENTS or position == len(sizes) - 1:
                yield Part(self, self.bucket[begin:end], parameters[first : position + 1])
                begin, first = end, position + 1

    def result(self) -> torch.Tensor:
        """The bucket with the mean; raises what went wrong. Only after the job is done."""
        if self.error is not None:
            raise self.error
        return self.bucket

    def finish_part(self, error: BaseException | None = None) -> None:
        with self._lock:
            self.error = self.error or error
            self._parts_left -= 1
            if self._parts_left:
                return
        self.done.set()
        self._signal.set_result(None)


class Failure:
    """The first thing that went wrong on this worker; no lane does anything after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def set(self, error: BaseException) -> None:
        with self._lock:
            self.error = self.error or error

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class Lane:
    """A thread that averages what it is given, one part after another."""

    def __init__(self, index: int, group: dist.ProcessGroup, failure: Failure):
        self.index = index
        self.group: dist.ProcessGroup | None = group
        self._communicator: GroupCommunicator | None = GroupCommunicator(group)
        self._failure = failure
        self._stage = HostStage()
        self._parts: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"thinwire-lane-{index}", daemon=True)
        self._thread.start()

    def submit(self, part: Part) -> None:
        self._parts.put(part)

    def close(self) -> None:
        """Ends the thread; one that waits for its peers is left behind, to end by the group's timeout."""
        self._parts.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_AT_CLOSE)
        if not self._thread.is_alive():
            self._leave_group()

    def _serve(self) -> None:
        while (part := self._parts.get()) is not None:
            error = None
            try:
                self._average(part)
            except BaseException as caught:  # whatever it is, it belongs to the training script
                error = caught
                self._failure.set(error)
                self._leave_group()
            # The first failure explains the others.
            part.job.finish_part(error and self._failure.error)
            del part, error  # an idle lane keeps no bucket alive

    def _average(self, part: Part) -> None:
        self._failure.check()
        job = part.job
        with self._stage.on_host(part.elements, job.ready) as elements:
            reduction = job.reducer.reduce(elements, part.parameters, self.index, job.loss_scale)
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
    """All lanes of a worker. Made by all workers together, in the same order."""

    def __init__(self, group: dist.ProcessGroup, count: int, timeout: timedelta, backend: str | None):
        self.failure = Failure()
        self._parts_so_far = 0
        self._lanes = [
            Lane(index, _new_group_like(group, timeout, backend), self.failure) for index in range(count)
        ]

    def submit(self, job: BucketJob) -> None:
        """Every worker submits the same buckets in the same order, so a part goes to the same lane on all."""
        for part in job.parts:
            self._lanes[self._parts_so_far % len(self._lanes)].submit(part)
            self._parts_so_far += 1

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
