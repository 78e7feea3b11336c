"""How long collectives take by connections of thinwire's own and by Gloo, in turns; run by torchrun:

    torchrun --nproc-per-node 4 -m bench.collectives
"""

from __future__ import annotations

import argparse
import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from thinwire import _native
from thinwire.torch.connections import connect
from thinwire.torch.group_communicator import GroupCommunicator
from torch.utils.dlpack import to_dlpack

_TURNS = 3
_ELEMENTS = "100,10000,100000,1000000,6553600"
_SPECS = {"sum": "none", "gather": "casq:bits=8,feedback=off,reduce=gather", "scatter, gather": "casq:bits=8,feedback=off,reduce=scatter"}


def _wire_seconds(reducer: _native.Reducer, gradient: torch.Tensor, communicator: GroupCommunicator) -> float:
    """Of one reduction's collectives alone."""
    reduction, seconds = reducer.reduce(to_dlpack(gradient), [0], 0, 1.0), 0.0
    while (collective := reduction.next()) is not None:
        begin = time.perf_counter()
        communicator.perform(collective)
        seconds += time.perf_counter() - begin
    reduction.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", default=_ELEMENTS, help=f"how large (default {_ELEMENTS})")
    sizes = [int(elements) for elements in parser.parse_args().elements.split(",")]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    connections = connect(dist.group.WORLD, timedelta(seconds=60), [])
    if connections is None:
        raise SystemExit("the workers cannot connect")
    ways = {"connections": GroupCommunicator(dist.group.WORLD, connections=connections), "Gloo": GroupCommunicator(dist.group.WORLD)}
    if rank == 0:
        print(f"milliseconds, medians, {world_size} workers\n\n{'elements':>10}  {'collectives':16}" + "".join(f"{way:>13}" for way in ways))
    for elements in sizes:
        for collectives, spec in _SPECS.items():
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for way in [way for _ in range(_TURNS) for way in ways]:
                reducer = _native.Reducer(
                    layout=[("gradient", [elements])], compressor=spec, rules=[], small_uncompressed=False, seed=0, rank=rank,
                    world_size=world_size, lanes=1, threads=1, measure_every=0, hosts=[])
                gradient = torch.randn(elements)
                taken = [_wire_seconds(reducer, gradient, ways[way]) for _ in range(2 + 1_000_000 // (elements + 50_000))]
                seconds[way] += taken[1:]
            if rank == 0:
                print(f"{elements:10,}  {collectives:16}" + "".join(f"{1e3 * statistics.median(each):13.2f}" for each in seconds.values()), flush=True)
    connections.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
