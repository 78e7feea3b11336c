"""How many cores a worker may take for encoding and decoding."""

import os

_MOST = 4


def default_threads(world_size: int) -> int:
    """Half of the cores that fall to this worker, but no more than four and at least one.

    Buckets are encoded while the backward pass still computes, beside data loaders that want cores too: hence half. With
    four a bucket of 25 MiB takes about 2 ms, and more would hardly be felt.
    The cores that this process may run on are shared by the workers of this machine: LOCAL_WORLD_SIZE of them, which
    torchrun sets; else all workers, which may be too many but are never too few.
    """
    return max(1, min(_MOST, int(cores_of_worker(world_size) // 2)))


def cores_of_worker(world_size: int) -> float:
    """That fall to this worker."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    workers_here = max(1, int(said)) if said.isdecimal() else world_size
    return len(os.sched_getaffinity(0)) / workers_here
