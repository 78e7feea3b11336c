"""A worker of bench.fsdp, in its namespace."""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire.torch

_BLOCKS, _BATCH = 12, 4
_WARM_UP = 2  # compressors learn in the first


def _model(elements: int) -> nn.Sequential:
    """Blocks of two square matrices each, whose gradients do not fade from one to the next."""
    torch.manual_seed(0)
    width = max(8, round((elements / (2 * _BLOCKS)) ** 0.5))
    return nn.Sequential(*[nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
                           for _ in range(_BLOCKS)])


def _sharded(elements: int, replicas: int) -> nn.Sequential:
    shards = dist.get_world_size() // replicas
    if replicas > 1:
        mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (shards,))
    model = _model(elements)
    for block in model:
        # Gathered once a step, so that the gradients are most of what travels.
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    return fully_shard(model, mesh=mesh, reshard_after_forward=False)


def _slowest(seconds: float) -> float:
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def _work(job: dict) -> None:
    def wire_bytes() -> int:
        return int(Path(f"/sys/class/net/{job['interface']}/statistics/tx_bytes").read_text())

    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for spec in job["specs"]:
        model = _sharded(job["elements"], job["replicas"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        gradients, _, gathers = spec.partition("+")
        attachment = None if spec == "plain" else thinwire.torch.attach(model, gradients, gathers=gathers or None, timeout=600)
        inputs = torch.randn(_BATCH, model[0][1].in_features, generator=generator)

        def step() -> float:
            dist.barrier()
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            return _slowest(time.perf_counter() - begin)

        for _ in range(_WARM_UP):
            step()
        before = wire_bytes()
        seconds = [step() for _ in range(job["steps"])]
        row = {"compressor": spec, "seconds": statistics.median(seconds), "steps": job["steps"],
               "parameters": sum(parameter.numel() for parameter in model.parameters()), "replicas": job["replicas"],
               "wire_bytes": (wire_bytes() - before) / job["steps"]}
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
        dist.barrier()
        if attachment is not None:
            attachment.close()
        del model, optimizer, attachment
    dist.destroy_process_group()


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
