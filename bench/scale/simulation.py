"""A cluster that SimGrid simulates, and `thinwire allreduce` on it: the real program, of which each rank computes what it would, one after another."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "libthinwire_simulated.so"
_PLATFORM = ROOT / "build" / "libthinwire_simulated_cluster.so"
# What the ranks' computation takes is measured as they do it here, and is what it takes there.
_FLOPS = 1e9
# Of a rate, what TCP over Ethernet leaves: 1,448 of 1,538 bytes.
_PAYLOAD_SHARE = 1448 / 1538
_LATENCY = 25e-6  # of a host's link, of which a message crosses two
BUCKET = 6_553_600  # elements: 25 MiB, as DDP's
# Seconds of computation that count: what is shorter is for the most part the simulator's own way from one rank to the next, and an event each.
_SHORTEST = 20e-6
_NEVER = 1e9
_WITHIN_HOST = 8e9, 1e-6  # bytes a second and seconds between ranks of a host
_WARM_UP = 4  # reductions that do not count: the first touch memory, and by `rate=` find their steps


@dataclass(frozen=True)
class Cluster:
    """Ranks are numbered host by host."""

    ranks: int
    ranks_a_host: int
    bits_per_second: float

    @property
    def hosts(self) -> int:
        return self.ranks // self.ranks_a_host

    @property
    def bytes_per_second(self) -> float:
        """Of a host's link."""
        return self.bits_per_second / 8 * _PAYLOAD_SHARE

    @property
    def latency_seconds(self) -> float:
        """From host to host."""
        return 2 * _LATENCY

    def ring_seconds(self, elements: int) -> float:
        """What the bytes alone of a sum of float32 around a ring take, which enters and leaves each host once."""
        return 2 * (self.ranks - 1) / self.ranks * 4 * elements / self.bytes_per_second

    def description(self) -> str:
        """For platform.cc."""
        return " ".join(map(str, (self.hosts, self.ranks_a_host, _FLOPS, self.bytes_per_second, _LATENCY, *_WITHIN_HOST)))

    def host_file(self) -> str:
        return "".join(f"host{rank // self.ranks_a_host}\n" for rank in range(self.ranks))

    def hosts_option(self) -> str:
        return ",".join(str(rank // self.ranks_a_host) for rank in range(self.ranks)) if self.ranks_a_host > 1 else "flat"


def can_be_built() -> bool:
    """Whether SimGrid was there when thinwire's build was set up."""
    cache = ROOT / "build" / "CMakeCache.txt"
    found = dict(line.split("=", 1) for line in cache.read_text().splitlines() if line.startswith("THINWIRE_S")) if cache.exists() else {}
    paths = [found.get(name, "NOTFOUND") for name in ("THINWIRE_SIMGRID:FILEPATH", "THINWIRE_SMPI_INCLUDE:PATH")]
    return not any(path.endswith("NOTFOUND") for path in paths)


def build() -> None:
    subprocess.run(["scripts/cmake_build.sh", "release", "thinwire_tool", "thinwire_simulated", "thinwire_simulated_cluster"], cwd=ROOT, check=True, capture_output=True, text=True)


def run(cluster: Cluster, compressor: str, elements: int, repetitions: int, *, two_levels: bool, computes: bool = True) -> dict:
    """The tool's report, in simulated seconds. computes: else computation takes no time."""
    with tempfile.TemporaryDirectory(prefix="thinwire-scale-") as folder:
        host_file = Path(folder, "hosts")
        host_file.write_text(cluster.host_file())
        settings = {"smpi/host-speed": f"{_FLOPS:.0f}f", "network/model": "CM02", "network/TCP-gamma": "0", "network/crosstraffic": "no",
                    "smpi/os": "0:0:0", "smpi/or": "0:0:0", "smpi/test": "0", "smpi/cpu-threshold": str(_SHORTEST if computes else _NEVER),
                    "smpi/finalization-barrier": "yes", "contexts/stack-size": "1024"}  # fmt: skip
        options = [f"--cfg={name}:{value}" for name, value in settings.items()]
        tool = [str(LIBRARY), "allreduce", "--compressor", compressor, "--elements", str(elements), "--json",
                "--warm-up", str(_WARM_UP), "--repetitions", str(repetitions), "--progress", "caller", "--lanes", "1",
                "--bucket", str(BUCKET), "--hosts", cluster.hosts_option() if two_levels else "flat"]  # fmt: skip
        command = ["smpirun", "-np", str(cluster.ranks), "-platform", str(_PLATFORM), "-hostfile", str(host_file), *options, *tool]
        environment = {**os.environ, "THINWIRE_CLUSTER": cluster.description(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr[-3000:]}")
    return json.loads(done.stdout[done.stdout.index("{"):])
