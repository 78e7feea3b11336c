"""Averages of one embedding's gradient on Gloo between the namespaces; also the worker that runs there."""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

from bench.network import workers
from bench.training.network import Namespaces

_WARM_UP = 2
TORCH = "(torch, sparse tensors)"  # what DDP does without a hook


def measure(net: Namespaces, specs: list[str], width: int, repetitions: int) -> list[dict]:
    """A row for each spec."""
    return workers.run(net, "bench.sparse.timing",
                       {"specs": specs, "width": width, "repetitions": repetitions, "interface": net.interface})


def _work(job: dict) -> None:
    import torch
    import torch.distributed as dist

    from bench.sparse import rows
    from thinwire import _native
    from thinwire.torch.group_communicator import GroupCommunicator

    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.set_num_threads(1)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    kind = rows.Zipf()
    steps = _WARM_UP + job["repetitions"]
    inputs = [torch.from_numpy(rows.gradient(kind, job["width"], step % 4, rank)) for step in range(min(steps, 4))]
    sparse = [each.to_sparse(1).coalesce() for each in inputs]
    communicator = GroupCommunicator(dist.group.WORLD)
    expected = inputs[0].clone()
    dist.all_reduce(expected)
    expected /= world_size

    def wire_bytes() -> int:
        return int(Path(f"/sys/class/net/{job['interface']}/statistics/tx_bytes").read_text())

    def run(reduction: _native.Reduction) -> None:
        while (collective := reduction.next()) is not None:
            communicator.perform(collective)

    def timed(action) -> float:
        dist.barrier()
        begin = time.perf_counter()
        action()
        value = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return value.item()

    def report(spec: str, seconds: list[float], traffic: float | None, wire: int) -> None:
        if rank == 0:
            print(json.dumps({"spec": spec, "seconds": statistics.median(seconds[_WARM_UP:]), "traffic_bytes": traffic,
                              "wire_bytes": wire / len(seconds), "repetitions": job["repetitions"]}), flush=True)

    def sum_sparse(step: int) -> None:
        tensor = sparse[step % 4].clone()
        dist.all_reduce(tensor)

    before = wire_bytes()
    report(TORCH, [timed(lambda: sum_sparse(step)) for step in range(steps)], None, wire_bytes() - before)
    for spec in job["specs"]:
        reducer = _native.Reducer(
            layout=[("embedding", [kind.rows, job["width"]])], compressor=spec, rules=[], small_uncompressed=False, seed=0,
            rank=rank, world_size=world_size, lanes=1, threads=1, measure_every=0)
        if reducer.chooses_by_link:
            run(reducer.measure_link(0))
        bucket = torch.empty(kind.rows * job["width"])
        seconds, before = [], wire_bytes()
        measuring = reducer.counters()["traffic_bytes"]
        for step in range(steps):
            bucket.copy_(inputs[step % 4].view(-1))
            seconds.append(timed(lambda: run(reducer.reduce(bucket, [0], 0, 1.0))))
            if step == 0 and not ("sketch" in spec or "casq" in spec or "bf16" in spec):
                torch.testing.assert_close(bucket.view_as(expected), expected, rtol=1e-3, atol=1e-3)
        report(spec, seconds, (reducer.counters()["traffic_bytes"] - measuring) / steps, wire_bytes() - before)
    dist.destroy_process_group()


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
