"""Starts the workers of a benchmark, one in each namespace, and collects what worker 0 says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from bench.training.network import Namespaces

REPOSITORY = Path(__file__).resolve().parents[2]
_LONGEST = 1800  # seconds


def run(net: Namespaces, module: str, job: dict, see: Callable[[dict], None] = lambda _: None) -> list[dict]:
    """`python -m module JSON` in every namespace, with torch.distributed's variables; worker 0 prints a JSON object a line, which `see` is
    shown at once."""
    processes = []
    for rank in range(net.workers):
        environment = os.environ | {
            "RANK": str(rank), "WORLD_SIZE": str(net.workers), "MASTER_ADDR": net.address(0), "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": net.interface, "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen(
            [*net.command_prefix(rank), sys.executable, "-m", module, json.dumps(job)], cwd=REPOSITORY, env=environment,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True))
    too_long = threading.Timer(_LONGEST, processes[0].kill)
    too_long.start()
    rows = []
    try:
        for line in processes[0].stdout:
            if line.startswith("{"):
                rows.append(json.loads(line))
                see(rows[-1])
        codes = [process.wait(timeout=60) for process in processes]
    finally:
        too_long.cancel()
        for process in processes:
            process.kill()
    if any(codes):
        raise RuntimeError(f"workers of {module} ended with {codes}")
    return rows
