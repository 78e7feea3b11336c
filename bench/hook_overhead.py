"""What attach(model, "none") costs over plain DDP, and what PyTorch's own all-reduce hook does: steps of all in turns, over loopback.

    .venv/bin/python -m bench.hook_overhead [--workers 2] [--runs 21] [--compressor none]

A run is a few steps of each, in turns which comes first; the median of the runs' ratios is told, of the time that a step takes and of the
processor time that all threads of a worker take for it.
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
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

MODELS = {  # layers, width, MiB of a bucket
    "one large layer after another": (6, 1024, 25),
    "many small buckets": (24, 256, 0.25),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--steps", type=int, default=5, help="of a run, for each")
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

    plain, hooked, ours = model(), model(), model()
    hooked.register_comm_hook(None, allreduce_hook)
    attachment = thinwire.torch.attach(ours, options.compressor, measure_every=0)
    inputs = torch.randn(8, width)
    models = [plain, hooked, ours]
    for each in models:
        steps(each, inputs, 3)  # DDP makes its buckets anew
    taken = []
    for run in range(options.runs):
        first = run % len(models)
        times = {each: steps(each, inputs, options.steps) for each in models[first:] + models[:first]}
        taken.append([times[each] for each in models])
    attachment.close()
    if rank == 0:
        print(name, "-", f"{sum(p.numel() for p in plain.parameters()) / 1e6:.1f} M parameters, {attachment.lanes} lanes", flush=True)
        for kind, what in enumerate(("a step", "processor time")):
            median = statistics.median(times[0][kind] for times in taken)
            more = [100 * (statistics.median(times[which][kind] / times[0][kind] for times in taken) - 1) for which in (1, 2)]
            beside = f"with PyTorch's hook {more[0]:+.1f} %, with thinwire {more[1]:+.1f} %"
            print(f"  {what:<15} plain {1e3 * median:7.2f} ms, {beside}", flush=True)


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
