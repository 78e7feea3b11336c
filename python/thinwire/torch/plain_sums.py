"""Buckets that are summed as DDP would sum them: of types that no compressor takes, such as float64 and complex, or where nothing is
compressed."""

import threading
import time
from typing import Any

import torch

from thinwire.torch.group_communicator import GroupCommunicator


class PlainSums:
    """Averages such buckets and counts what it does, in any number of threads."""

    def __init__(self, world_size: int):
        self._world_size = world_size
        self._lock = threading.Lock()
        self._buckets = self._elements = self._bytes = 0
        self._seconds = 0.0

    def average(self, bucket: torch.Tensor, communicator: GroupCommunicator) -> None:
        """In place, over all workers."""
        begin = time.perf_counter()
        bucket.div_(self._world_size)
        communicator.add_up(bucket)
        self.count(bucket)
        self.waited(time.perf_counter() - begin)

    def count(self, bucket: torch.Tensor) -> None:
        """A bucket that is averaged."""
        with self._lock:
            self._buckets += 1
            self._elements += bucket.numel()
            self._bytes += bucket.numel() * bucket.element_size()

    def waited(self, seconds: float) -> None:
        """For sums."""
        with self._lock:
            self._seconds += seconds

    def added_to(self, counters: dict[str, Any]) -> dict[str, Any]:
        """A reducer's counters, with these sums among them."""
        sent = 2 * (self._world_size - 1) / self._world_size * self._bytes
        own = {
            "reductions": self._buckets,
            "rounds": self._buckets,
            "elements": self._elements,
            "payload_bytes": self._bytes,
            "traffic_bytes": sent,
            "plain_traffic_bytes": sent,
            "wire_seconds": self._seconds,
        }
        return counters | {name: counters[name] + value for name, value in own.items()}
