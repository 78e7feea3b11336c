"""A real DDP backward on Gloo between the namespaces; also the worker that runs there."""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

from bench.network import workers
from bench.training.network import Namespaces

_TINY_STEPS = 51
_BLOCK = 4096  # elements of a gradient that have one scale
_ALONE = "(no exchange)"  # the backward pass itself, in which DDP copies gradients into buckets: every other row contains it


def measure(net: Namespaces, specs: list[str], elements: int, repetitions: int, lanes: int | None) -> list[dict]:
    """A row for each spec: seconds from the backward's start until all gradients are there."""
    return workers.run(net, "bench.network.ddp_path",
                       {"specs": specs, "elements": elements, "repetitions": repetitions, "interface": net.interface, "lanes": lanes,
                        "addresses": [net.address(rank) for rank in range(net.workers)] if net.per_host == 1 else None})


def shapes(elements: int) -> list[tuple[int, ...]]:
    """Layers like ResNet-50's (25.5 M parameters), as often or as small as it takes to have about so many elements."""
    layers = [(64, 3, 7, 7), (1000, 2048)]
    fan_in = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for _ in range(blocks):
            layers += [(width, fan_in, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            fan_in = 4 * width
    chosen: list[tuple[int, ...]] = []
    left = elements
    for layer in sorted(layers, key=_count, reverse=True) * (1 + elements // 20_000_000):
        if _count(layer) <= left:
            chosen.append(layer)
            left -= _count(layer)
    if left:
        chosen.append((left,))
    return chosen[::-1]


def _count(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _work(job: dict) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    from bench.training import probes
    from bench.training.replica import Replica

    class HandOver(torch.autograd.Function):
        """Zero, with a gradient that is given."""

        @staticmethod
        def forward(ctx, noise, weight):
            ctx.gradient = noise.clone()  # before the backward pass, which else would begin with that
            return torch.zeros((), requires_grad=True)

        @staticmethod
        def backward(ctx, _):
            gradient, ctx.gradient = ctx.gradient, None  # nobody else's: autograd takes it over without copying it
            return None, gradient

    def gradient_like(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Gaussian, at scales that differ from block to block, as those that `thinwire allreduce` draws."""
        blocks = -(-_count(shape) // _BLOCK)
        scales = 1e-3 * torch.randn(blocks, 1, generator=generator).exp()
        return (scales * torch.randn(blocks, _BLOCK, generator=generator)).flatten()[: _count(shape)].reshape(shape).clone()

    class Noise(nn.Module):
        """Its gradients are noise, other on each worker, and take no computation: they lie there when the backward pass begins."""

        def __init__(self, layers: list[tuple[int, ...]]) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(dist.get_rank())
            self.weights = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in layers)
            self.noise = [gradient_like(shape, generator) for shape in layers]

        def forward(self) -> torch.Tensor:
            # One node for each weight, so that gradients are there one after another, the last layer's first.
            return sum(HandOver.apply(noise, weight) for weight, noise in zip(self.weights, self.noise))

    def leave_alone(_, bucket):  # bare, since DDP reads annotations and takes no strings
        """A hook that exchanges nothing."""
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def wire_bytes() -> int:
        return int(Path(f"/sys/class/net/{job['interface']}/statistics/tx_bytes").read_text())

    def slowest(seconds: float) -> float:
        value = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return value.item()

    def step(replica: Replica) -> float:
        replica.model.zero_grad(set_to_none=True)
        loss = replica.model()
        dist.barrier()
        begin = time.perf_counter()
        loss.backward()
        return slowest(time.perf_counter() - begin)

    def begin(spec: str, layers: list[tuple[int, ...]]) -> Replica:
        """Warmed up."""
        replica = Replica(Noise(layers), "plain" if spec == _ALONE else spec, timeout=600, powersgd_first_step=2, lanes=job["lanes"])
        if spec == _ALONE:
            replica.model.register_comm_hook(None, leave_alone)
        for _ in range(replica.warm_up_steps):
            step(replica)
        return replica

    def tiny_step(spec: str) -> float:
        """Seconds, of a model of one element."""
        replica = begin(spec, [(1,)])
        seconds = statistics.median([step(replica) for _ in range(_TINY_STEPS)])
        replica.close()
        return seconds

    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.set_num_threads(1)
    rate = probes.link_rate(dist.get_rank(), job["addresses"]) if job["addresses"] else None
    by_gloo, by_lanes = probes.backend_round_seconds(), probes.lane_round_seconds()
    start_seconds = max(0.0, tiny_step("thinwire:none") - tiny_step(_ALONE) - by_lanes)
    for spec in [_ALONE, *job["specs"]]:
        replica = begin(spec, shapes(job["elements"]))
        done = replica.warm_up_steps
        sent, on_wire, busy = replica.costs(done).bytes_sent, wire_bytes(), probes.processor_seconds()
        seconds = [step(replica) for _ in range(job["repetitions"])]
        busy = (probes.processor_seconds() - busy) / (job["repetitions"] * dist.get_world_size())
        row = {"path": "DDP", "compressor": spec, "seconds": statistics.median(seconds), "repetitions": job["repetitions"],
               "payload_bits_per_second": rate,
               "lanes": replica.lanes, "round_seconds": by_lanes if replica.lanes else by_gloo,
               "start_seconds": start_seconds if replica.lanes else 0,  # what a step takes longer, with next to nothing to exchange, than without a hook, but for the round
               "processor_seconds": busy,  # a worker's, if it has its share of what the machine did
               "traffic_bytes": 0 if spec == _ALONE else (replica.costs(done + job["repetitions"]).bytes_sent - sent) / job["repetitions"],
               "wire_bytes": (wire_bytes() - on_wire) / job["repetitions"]}
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
        dist.barrier()
        replica.close()
        del replica
    dist.destroy_process_group()


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
