"""The way of CUDA buckets through the host, with a device that only pretends: this machine has none."""

from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock

import torch
from thinwire.torch import lanes
from thinwire.torch.host_copies import HostCopies, ready_event
from thinwire.torch.sparse_bucket import DenseForms, SparseBucket


class PretendedBucket:
    """Elements elsewhere: they can be copied from and to, and nothing else."""

    def __init__(self, elements, log):
        self.elements, self.log = elements, log
        self.device, self.dtype = torch.device("cuda", 0), elements.dtype

    def numel(self):
        return self.elements.numel()

    def copy_(self, host):
        self.log.append("to the device")
        self.elements.copy_(host)


class PretendedHost:
    """Pinned memory."""

    def __init__(self, elements, log):
        self.elements, self.log = elements, log

    def numel(self):
        return self.elements.numel()

    def __getitem__(self, place):
        return PretendedView(self.elements[place], self.log)


class PretendedView(torch.Tensor):
    def __new__(cls, elements, log):
        view = elements.as_subclass(cls)
        view.log = log
        return view

    def copy_(self, bucket):
        self.log.append("to the host")
        return super().copy_(bucket.elements)


def pretended_cuda(log):
    stream = SimpleNamespace(
        wait_event=lambda event: log.append(f"wait for {event}"), synchronize=lambda: log.append("synchronize")
    )

    def empty(elements, *, dtype, pin_memory):
        assert pin_memory
        log.append(f"pin {elements}")
        return PretendedHost(torch.zeros(elements, dtype=dtype), log)

    return (
        mock.patch.object(torch.cuda, "Stream", lambda device: stream),
        mock.patch.object(torch.cuda, "device", lambda device: nullcontext()),
        mock.patch.object(torch.cuda, "stream", lambda chosen: nullcontext()),
        mock.patch.object(torch, "empty", empty),
    )


def test_cuda_buckets_travel_through_pinned_memory_in_order():
    log = []
    copies = HostCopies()
    with ExitStack() as pretences:
        for pretence in pretended_cuda(log):
            pretences.enter_context(pretence)
        for size in (6, 4):
            bucket = PretendedBucket(torch.arange(float(size)), log)
            with copies.on_host(bucket, "ready") as host:
                assert host.tolist() == list(range(size))
                host.mul_(2)
            assert bucket.elements.tolist() == [2.0 * i for i in range(size)]
    way = ["wait for ready", "to the host", "to the device", "synchronize"]
    assert log == [way[0], "pin 6", *way[1:], *way]  # pinned once


def test_the_mean_of_a_sparse_bucket_is_taken_on_the_lanes_stream_and_whole_for_every_other():
    log = []

    @contextmanager
    def stream(chosen):
        log.append("enter")
        yield
        log.append("leave")

    lane = object.__new__(lanes.Lane)
    lane.index, lane._failure, lane._copies, lane.run = 0, lanes.Failure(), HostCopies(), lambda reduction: log.append("reduce")
    job = SimpleNamespace(
        is_plain=False, bucket=PretendedBucket(torch.arange(4.0), log), parameters=[0], loss_scale=1.0, ready="ready",
        sparse=SimpleNamespace(take_mean=lambda: log.append("take mean")), reducer=SimpleNamespace(reduce=lambda *_: None),
    )
    with ExitStack() as pretences:
        for pretence in (*pretended_cuda(log), mock.patch.object(torch.cuda, "stream", stream), mock.patch.object(lanes, "to_dlpack", id)):
            pretences.enter_context(pretence)
        lane._average(job)
    assert log[log.index("reduce") :] == ["reduce", "to the device", "synchronize", "leave", "enter", "take mean", "synchronize", "leave"]


class PretendedRows(torch.Tensor):
    """Numbers of rows, in memory of a device."""

    is_cuda = True
    streams = []

    def record_stream(self, stream):
        self.streams.append(stream)


def test_rows_that_a_lane_has_found_are_kept_until_they_are_cleared():
    forms = DenseForms()
    sparse = SparseBucket(torch.sparse_coo_tensor([[1, 3]], torch.ones(2, 2), (5, 2), check_invariants=True), 0, forms)
    sparse.take_mean()
    sparse._used = sparse._used.as_subclass(PretendedRows)
    with mock.patch.object(torch.cuda, "current_stream", lambda device: "the step's"):
        sparse.release(committed=True)
    assert PretendedRows.streams == ["the step's"]
    assert not forms.take(0, sparse.mean).any()


def test_host_buckets_are_not_copied():
    bucket = torch.arange(3.0)
    assert ready_event(bucket) is None
    with HostCopies().on_host(bucket, None) as host:
        assert host is bucket
