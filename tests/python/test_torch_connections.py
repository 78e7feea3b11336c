"""Connections of the lanes' own: what they carry is what Gloo carries; where they cannot be made Gloo carries it."""

import logging
import os
import socket
import struct
import threading
import time
from datetime import timedelta

import pytest
import thinwire.torch
import torch
import torch.distributed as dist
from small_models import backward, batch, ddp, gradients
from thinwire.torch import connections
from worker_pool import pool

SPECS = ["none", "casq:bits=2", "casq:bits=2,reduce=scatter", "casq:rate=0.5,reduce=scatter", "bf16", "s2:mode=exact", "gradiveq:slice=48,smallest=16"]


def connected(attachment):
    return [lane._connections is not None for lane in attachment._lanes._lanes]


def train(spec, hosts, backend):
    model = ddp()
    attachment = thinwire.torch.attach(model, spec, timeout=20, hosts=hosts, backend=backend, seed=3)
    for step in range(4):
        model.zero_grad()
        backward(model, batch(step, dist.get_rank()))
    means, carried = gradients(model), connected(attachment)
    attachment.close()
    return means, carried


def check_the_same_means(spec, hosts):
    means, carried = train(spec, hosts, None)
    assert carried and all(carried)
    by_gloo, carried = train(spec, hosts, "gloo")
    assert carried and not any(carried)
    if dist.get_world_size() == 2 or "casq" in spec:
        assert torch.equal(means, by_gloo)  # of more workers sums take another way around the ring
    torch.testing.assert_close(means, by_gloo, rtol=2e-2, atol=1e-4)
    return means


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("world_size", "hosts"), [(2, "flat"), (3, "flat"), (3, [0, 0, 1])])
def test_they_carry_what_gloo_carries(spec, world_size, hosts):
    first, *others = pool(world_size).run(check_the_same_means, spec, hosts)
    assert all(torch.equal(first, other) for other in others)


def check_uncompressed_buckets_of_a_device_go_by_the_models_group():
    """Which is NCCL's, perhaps: lanes would take them through the host."""
    model, taken = ddp(), []
    with thinwire.torch.attach(model, "none", timeout=20) as attachment:
        plainly = attachment._average_plainly
        attachment._average_plainly = lambda bucket: taken.append(bucket.index()) or plainly(bucket)
        for on_device in (False, True):
            attachment._parameters.any_on_device = on_device
            backward(model, batch(0, dist.get_rank()))
            assert bool(taken) == on_device


def test_uncompressed_buckets_of_a_device_go_by_the_models_group():
    pool(2).run(check_uncompressed_buckets_of_a_device_go_by_the_models_group)


def open_files():
    return len(os.listdir("/proc/self/fd"))


def check_nothing_is_left():
    group, counts = dist.group.WORLD, []
    for _ in range(3):
        made = connections.connect(group, timedelta(seconds=5), [])
        numbers = torch.tensor([float(dist.get_rank()), -1.0])
        made.greatest(numbers.numpy())
        assert numbers.tolist() == [dist.get_world_size() - 1, -1]
        dist.barrier()
        made.close()
        counts.append(open_files())
        with pytest.raises(thinwire.StateError, match="closed"):
            made.greatest(numbers.numpy())
    assert counts[0] == counts[2]


def test_nothing_is_left_of_them():
    pool(3).run(check_nothing_is_left)


def check_closing_ends_what_is_under_way():
    made = connections.connect(dist.group.WORLD, timedelta(seconds=60), [])
    if dist.get_rank() == 0:
        threading.Timer(0.5, made.close).start()
    if dist.get_rank() < 2:  # the last one never comes
        with pytest.raises(thinwire.PeerError, match="has left the group"):
            made.sum(torch.ones(3).numpy())
    dist.barrier()
    made.close()


def test_closing_ends_what_is_under_way():
    begin = time.monotonic()
    pool(3).run(check_closing_ends_what_is_under_way)
    assert time.monotonic() - begin < 30


class Messages(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def check_gloo_takes_over(spoil):
    """Every worker gets to know, soon, why; and trains."""
    logger, messages = logging.getLogger("thinwire"), Messages()
    level = logger.level
    logger.addHandler(messages)
    logger.setLevel(logging.INFO)
    real = {name: getattr(connections, name) for name in ("_own_address", "_listener", "_PATIENCE", "_SHARE_OF_FILES")}
    if dist.get_rank() == 1:
        spoil()
    before, begin = open_files(), time.monotonic()
    try:
        assert connections.connect(dist.group.WORLD, timedelta(seconds=5), []) is None
        assert time.monotonic() - begin < 8
        assert open_files() == before
        assert "messages go through Gloo: rank" in messages.texts[0]
        model = ddp()
        with thinwire.torch.attach(model, "casq:bits=2", timeout=20) as attachment:
            backward(model, batch(0, dist.get_rank()))
            assert not any(connected(attachment))
            assert torch.isfinite(gradients(model)).all()
    finally:
        logger.removeHandler(messages)
        logger.setLevel(level)
        for name, value in real.items():
            setattr(connections, name, value)


def be_without_a_network():
    def nowhere():
        raise OSError("no network")

    connections._own_address = nowhere


def be_told_a_wrong_interface():
    def of_another_host():
        return socket.AF_INET, "192.0.2.1"  # of no host: RFC 5737

    connections._own_address = of_another_host


class Elsewhere(socket.socket):
    """Says that it listens where nobody does."""

    def getsockname(self):
        address, port, *_ = super().getsockname()
        with socket.create_server((address, 0)) as other:
            return address, other.getsockname()[1]


def be_called_elsewhere():
    def listener():
        listening = Elsewhere(socket.AF_INET)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        return listening

    connections._listener = listener
    connections._PATIENCE = 2


def be_short_of_files():
    connections._SHARE_OF_FILES = 2**40


@pytest.mark.parametrize("spoil", [be_short_of_files, be_without_a_network, be_told_a_wrong_interface, be_called_elsewhere])
def test_gloo_takes_over_where_workers_cannot_connect(spoil):
    pool(3).run(check_gloo_takes_over, spoil)


def check_strangers_are_ignored():
    real = connections._join

    def join(opened, listener, *further):
        strangers = [socket.create_connection(listener.getsockname()[:2]) for _ in range(3)]
        strangers[0].sendall(bytes(range(24)))
        strangers[1].sendall(b"hello")
        strangers[2].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets the connection
        for stranger in strangers:
            stranger.close()
        return real(opened, listener, *further)

    connections._join = join
    try:
        made = connections.connect(dist.group.WORLD, timedelta(seconds=5), [])
        numbers = torch.tensor([float(dist.get_rank())])
        made.greatest(numbers.numpy())
        assert numbers.item() == dist.get_world_size() - 1
        made.close()
    finally:
        connections._join = real


def test_strangers_are_ignored():
    pool(3).run(check_strangers_are_ignored)


def check_the_interface(name):
    os.environ["GLOO_SOCKET_IFNAME"] = name
    try:
        return connections._own_address()
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]


def test_the_interface_is_that_of_gloo():
    assert pool(2).run(check_the_interface, "lo") == [(socket.AF_INET, "127.0.0.1")] * 2
