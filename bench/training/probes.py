"""Measurements before training: the link, its rounds, a bare all-reduce, and a step's compute."""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from bench.training.replica import Replica
from bench.training.trainer import Trainer

_LINK_SECONDS = 0.8
_LINK_WARM_UP_SECONDS = 0.2  # bursts and slow start are not the link's rate
_CHUNK_BYTES = 1 << 18
_ROUNDS = 50
_BACKEND_ELEMENTS = 1024  # hardly any bytes; a single number goes by Gloo several times as fast as these, which go as fast as many more
_STEPS, _WARM_UP_STEPS = 8, 3


def link_rate(rank: int, addresses: list[str]) -> float:
    """Payload bits a second that a worker sends in a ring, all at once; the mean over workers.

    Plain TCP sockets: what is left of the link's rate after headers, and the most that any
    collective can reach.
    """
    server = socket.create_server((addresses[rank], 0))
    ports: list[int] = [0] * len(addresses)
    dist.all_gather_object(ports, server.getsockname()[1])
    following = (rank + 1) % len(addresses)
    sender = threading.Thread(target=_send, args=((addresses[following], ports[following]),))
    sender.start()
    rate = torch.tensor([_receive(server)])
    sender.join()
    dist.all_reduce(rate)
    return rate.item() / len(addresses)


def _send(address: tuple[str, int]) -> None:
    chunk = bytes(_CHUNK_BYTES)
    with socket.create_connection(address) as connection:
        end = time.perf_counter() + _LINK_SECONDS
        while time.perf_counter() < end:
            connection.sendall(chunk)


def _receive(server: socket.socket) -> float:
    connection, _ = server.accept()
    buffer = bytearray(_CHUNK_BYTES)
    start = time.perf_counter()
    counted_from = counted_to = start
    received = 0
    with server, connection:
        while count := connection.recv_into(buffer):
            counted_to = time.perf_counter()
            if counted_to - start < _LINK_WARM_UP_SECONDS:
                counted_from = counted_to
            else:
                received += count
    return received * 8 / max(counted_to - counted_from, 1e-9)


def backend_round_seconds() -> float:
    """Of a collective that moves next to nothing, by the process group's backend."""
    return _round_seconds(dist.all_reduce, _BACKEND_ELEMENTS)


def lane_round_seconds() -> float:
    """The same by what thinwire's lanes go by: connections of their own, or the backend."""
    from thinwire.torch.connections import connect
    connections = connect(dist.group.WORLD, timedelta(seconds=600), [])
    if connections is None:
        return backend_round_seconds()
    seconds = _round_seconds(lambda numbers: connections.sum(numbers.numpy()), 1)
    connections.close()
    return seconds


def _round_seconds(collective: Callable[[torch.Tensor], object], elements: int) -> float:
    seconds = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        collective(torch.zeros(elements))
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def processor_seconds() -> float:
    """Of all cores of this machine until now, whatever they were at."""
    user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def all_reduce_seconds(elements: int, repeats: int) -> tuple[float, float]:
    """Of an all-reduce of `elements` float32 that nothing else disturbs: the median, and what a worker has of the processor, if that is its
    share of what the machine does."""
    values = torch.zeros(elements)
    dist.all_reduce(values)
    dist.barrier()
    busy = processor_seconds()
    seconds = []
    for _ in range(repeats):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(values)
        seconds.append(time.perf_counter() - begin)
    dist.barrier()
    busy = (processor_seconds() - busy) / (repeats * dist.get_world_size())
    return mean_over_workers(statistics.median(seconds)), mean_over_workers(busy)


def mean_over_workers(value: float) -> float:
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def compute_seconds(trainer: Trainer, alone: dist.ProcessGroup) -> float:
    """Median seconds of a step without communication: `no_sync`, all workers at the same time."""
    return _step_seconds(trainer, "plain", alone, communicates=False)


def ddp_step_seconds(trainer: Trainer, alone: dist.ProcessGroup) -> float:
    """The slowest worker's, of steps that all begin together, by DDP in groups of one, which exchange nothing."""
    replica = Replica(trainer.make_model(0), "plain", alone)
    optimizer, indices = trainer.optimizer_of(replica), torch.arange(trainer.settings.batch)
    seconds = []
    for _ in range(_WARM_UP_STEPS + _STEPS):
        dist.barrier()
        begin = time.perf_counter()
        trainer.step(replica.model, optimizer, indices)
        seconds.append(torch.tensor([time.perf_counter() - begin], dtype=torch.float64))
        dist.all_reduce(seconds[-1], op=dist.ReduceOp.MAX)
    return statistics.median(each.item() for each in seconds[_WARM_UP_STEPS:])


def compress_seconds(trainer: Trainer, spec: str, alone: dist.ProcessGroup) -> float:
    """What a PyTorch hook itself costs a step, in seconds: a group of one worker has no wire, so
    it is the difference between a step there with the hook and one without."""
    with_hook = _step_seconds(trainer, spec, alone, communicates=True)
    without = _step_seconds(trainer, "plain", alone, communicates=True)
    return max(0.0, with_hook - without)


def _step_seconds(trainer: Trainer, spec: str, alone: dist.ProcessGroup,
                  communicates: bool) -> float:
    replica = Replica(trainer.make_model(0), spec, alone)
    optimizer = trainer.optimizer_of(replica)
    indices = torch.arange(trainer.settings.batch)
    warm_up = replica.warm_up_steps if communicates else _WARM_UP_STEPS
    dist.barrier()
    seconds = []
    with nullcontext() if communicates else replica.model.no_sync():
        for _ in range(warm_up + _STEPS):
            begin = time.perf_counter()
            trainer.step(replica.model, optimizer, indices)
            seconds.append(time.perf_counter() - begin)
    return mean_over_workers(statistics.median(seconds[warm_up:]))
