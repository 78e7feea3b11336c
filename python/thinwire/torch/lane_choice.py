"""How many lanes suit a model, by what codec and link do with a piece of noise."""

import math
import time
from collections import Counter

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire import _native
from thinwire.torch.lanes import Lanes
from thinwire.torch.model_parameters import ModelParameters

FEWEST = 2  # cost little, and what a trial cannot know, such as the backward pass between the buckets, they hide
MOST = 4
_SHAPE = [1024, 1024]  # of the noise: some megabytes, so that attach() does not take long on a slow link
_ROUNDS = 3


def choose_lanes(
    ddp_model: DistributedDataParallel, parameters: ModelParameters, reducer: _native.Reducer, lanes: Lanes, threads: int
) -> int:
    """From FEWEST to MOST, the same on all workers, which call this together before the first bucket."""
    group = ddp_model.process_group
    buckets = bucket_count(ddp_model, parameters)
    if buckets <= FEWEST:
        return FEWEST
    codec, wire = _trial(_main_compressor(parameters, reducer), group, lanes, threads, reducer.hosts)
    share = sum(parameters.elements) / math.prod(_SHAPE)
    said: list[tuple[float, float]] = [(0.0, 0.0)] * dist.get_world_size(group)
    dist.all_gather_object(said, (share * codec, share * wire), group=group)
    slowest = (max(codec for codec, _ in said), max(wire for _, wire in said))
    return max(FEWEST, _native.choose_lanes(*slowest, buckets=buckets, most=MOST))


def bucket_count(ddp_model: DistributedDataParallel, parameters: ModelParameters) -> int:
    """About how many buckets DDP will make: the first is shorter than the others."""
    return min(len(parameters.names), 1 + math.ceil(parameters.bytes / max(1, ddp_model.bucket_bytes_cap)))


def _main_compressor(parameters: ModelParameters, reducer: _native.Reducer) -> str:
    """The one of most elements."""
    elements: Counter[str] = Counter()
    for spec, count in zip(reducer.compressors, parameters.elements, strict=True):
        elements[spec] += count
    return elements.most_common(1)[0][0]


def _trial(compressor: str, group: dist.ProcessGroup, lanes: Lanes, threads: int, hosts: list[int]) -> tuple[float, float]:
    """Seconds of codec and of wire for the noise, at best."""
    rank = dist.get_rank(group)
    reducer = _native.Reducer(
        layout=[("noise", _SHAPE)],
        compressor=compressor,
        rules=[],
        small_uncompressed=False,
        seed=0,
        rank=rank,
        world_size=dist.get_world_size(group),
        lanes=1,
        threads=threads,
        measure_every=0,
        hosts=hosts,
    )
    if reducer.chooses_by_link:
        lanes.run(reducer.measure_link(0))
    generator = torch.Generator("cpu").manual_seed(rank)
    noise = torch.randn(math.prod(_SHAPE), generator=generator, dtype=torch.float32, device="cpu")  # whatever the defaults are
    times = [_time(reducer, noise.clone(), lanes) for _ in range(1 + _ROUNDS)]
    return min(times[1:], key=sum)  # the first trains clusters and touches memory


def _time(reducer: _native.Reducer, bucket: torch.Tensor, lanes: Lanes) -> tuple[float, float]:
    before, begin = _codec_seconds(reducer), time.perf_counter()
    lanes.run(reducer.reduce(bucket, [0], 0, 1.0))
    codec = _codec_seconds(reducer) - before
    return codec, max(0.0, time.perf_counter() - begin - codec)


def _codec_seconds(reducer: _native.Reducer) -> float:
    counters = reducer.counters()
    return counters["encode_seconds"] + counters["decode_seconds"]
