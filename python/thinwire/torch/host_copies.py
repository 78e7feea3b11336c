"""Buckets in CUDA memory, brought to the host and back."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


class HostCopies:
    """Gives a lane its buckets in host memory; those that are there already are not copied.

    CUDA buckets travel through pinned memory, on a stream of their own, so that the backward pass goes on meanwhile.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pinned: dict[torch.dtype, torch.Tensor] = {}

    def on_host(self, bucket: torch.Tensor, ready: torch.cuda.Event | None) -> AbstractContextManager[torch.Tensor]:
        """The bucket's elements in host memory; at the end they go back into the bucket.

        ready: recorded when the bucket's elements were computed (see ready_event). At the end the bucket is whole on the
        device, so that no stream has to wait for another.
        """
        return nullcontext(bucket) if bucket.device.type == "cpu" else self._copied(bucket, ready)

    def on_device(self, bucket: torch.Tensor) -> AbstractContextManager[object]:
        """For what a lane does on the bucket's device itself: on the copies' stream, not behind the backward pass. At the end it is
        done, so that no stream has to wait for another."""
        return nullcontext() if bucket.device.type == "cpu" else self._streamed(bucket.device)

    @contextmanager
    def _streamed(self, device: torch.device) -> Iterator[torch.cuda.Stream]:
        stream = self._stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield stream
            stream.synchronize()

    @contextmanager
    def _copied(self, bucket: torch.Tensor, ready: torch.cuda.Event | None) -> Iterator[torch.Tensor]:
        with self._streamed(bucket.device) as stream:  # whose end also frees the pinned memory for the next bucket
            stream.wait_event(ready)
            host = self._pinned_like(bucket)
            host.copy_(bucket)  # returns when the elements have arrived
            yield host
            bucket.copy_(host)

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def _pinned_like(self, bucket: torch.Tensor) -> torch.Tensor:
        pinned = self._pinned.get(bucket.dtype)
        if pinned is None or pinned.numel() < bucket.numel():
            pinned = torch.empty(bucket.numel(), dtype=bucket.dtype, pin_memory=True)
            self._pinned[bucket.dtype] = pinned
        return pinned[: bucket.numel()]


def ready_event(bucket: torch.Tensor) -> torch.cuda.Event | None:
    """Marks the place in the current stream where the bucket's elements are computed; None on the host."""
    if bucket.device.type == "cpu":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(bucket.device))
    return event
