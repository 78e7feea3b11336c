"""What attach(model, "none") costs over plain DDP: steps of both in turns, over loopback.

    .venv/bin/python -m bench.hook_overhead [--workers 2] [--runs 20] [--compressor none]

A run is a few steps of one and as many of the other, in turns which comes first; the median of the runs' ratios is told, of
the time that a step takes and of the processor time that all threads of a worker take for it.
"""

import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MODELS = {  # layers, width, MiB of a bucket
    "one large layer after another": (6, 1024, 25),
    "many small buckets": (24, 256, 0.25),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5, help="of a run, for each of the two")
    parser.add_argument("--compressor", default="none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (options, f"file://{folder}/store"), options.workers)


def work(rank, options, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=options.workers)
    for name, (layers, width, bucket) in MODELS.items():
        measure(name, rank, options, layers, width, bucket)
    dist.destroy_process_group()


def measure(name, rank, options, layers, width, bucket):
    import thinwire.torch

    def model():
        torch.manual_seed(0)
        return DistributedDataParallel(nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]), bucket_cap_mb=bucket)

    plain, ours = model(), model()
    attachment = thinwire.torch.attach(ours, options.compressor, measure_every=0)
    inputs = torch.randn(8, width)
    for each in (plain, ours):
        steps(each, inputs, 3)  # DDP makes its buckets anew
    taken = []
    for run in range(options.runs):
        order = [plain, ours] if run % 2 else [ours, plain]
        times = {each: steps(each, inputs, options.steps) for each in order}
        taken.append((times[plain], times[ours]))
    attachment.close()
    if rank == 0:
        print(name, "-", f"{sum(p.numel() for p in plain.parameters()) / 1e6:.1f} M parameters, {attachment.lanes} lanes", flush=True)
        for kind, what in enumerate(("a step", "processor time")):
            before, after = (statistics.median(times[which][kind] for times in taken) for which in (0, 1))
            ratio = statistics.median(ours[kind] / plain[kind] for plain, ours in taken)
            print(f"  {what:<15} plain {1e3 * before:7.2f} ms, with thinwire {1e3 * after:7.2f} ms, {100 * (ratio - 1):+.1f} %", flush=True)


def steps(model, inputs, count):
    """(seconds, processor seconds) of a step."""
    dist.barrier()
    begin, begin_processor = time.perf_counter(), time.process_time()
    for _ in range(count):
        model.zero_grad()
        model(inputs).square().mean().backward()
    return (time.perf_counter() - begin) / count, (time.process_time() - begin_processor) / count


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
