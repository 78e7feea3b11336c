"""`thinwire allreduce` through MPI between the namespaces."""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from bench.training import specs
from bench.training.network import Namespaces

TOOL = os.environ.get("THINWIRE_TOOL", str(Path(__file__).resolve().parents[2] / "build" / "thinwire"))
_LONGEST = 1800  # seconds
_TINY_STEPS = 51

# mpirun starts a daemon on every "host" by what it takes for ssh. Each is given a host name of its own, as mpirun takes
# processes of one name for neighbours that share memory.
_AGENT = """#!/bin/sh
host=$((${{1##*.}} - 1))
shift
exec ip netns exec {stem}$host unshare --uts sh -c "hostname worker$host && $*"
"""


def start_seconds(net: Namespaces) -> float:
    """Seconds, beyond a round, of a step that exchanges next to nothing: workers do not begin at once."""
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        report = json.loads(_run(net, _agent(net, folder), ["--compressor", "none", "--elements", "1", "--json", "--repetitions", str(_TINY_STEPS)]))
    return max(0.0, report["seconds"] - report["round_seconds"])


def measure(net: Namespaces, spec: str, shapes: list[tuple[int, ...]], repetitions: int, lanes: int | None,
            warm_up: int, trace: Path | None = None) -> list[dict]:
    """Rows of the plain sum and of `spec`, measured in turns. A gradient of one shape is cut at will, others at layers.

    trace: where to write a timeline of the last compressed reduction."""
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        agent = _agent(net, folder)
        gradient = ["--elements", str(math.prod(shapes[0]))]
        if len(shapes) > 1:
            gradient = ["--layout", _write_layout(shapes, Path(folder, "layout.json"))]
        compressor = specs.thinwire_specs(spec)[1]
        report = json.loads(_run(net, agent, ["--compressor", compressor, *gradient, "--json", "--interface", net.interface,
                                              "--repetitions", str(repetitions), "--warm-up", str(warm_up),
                                              *(["--lanes", str(lanes)] if lanes else []),
                                              *(["--hosts", "auto"] if specs.on_two_levels(spec) else []),
                                              *(["--trace", str(trace.resolve())] if trace else [])]))
    common = {"path": "MPI", "repetitions": repetitions, "round_seconds": report["round_seconds"]}
    return [
        {**common, "compressor": "plain", "seconds": report["plain_seconds"],
         "traffic_bytes": report["plain_traffic_bytes"], "wire_bytes": report["plain_wire_bytes"]},
        {**common, "compressor": spec, "seconds": report["seconds"], "mean_seconds": report["mean_seconds"],
         "plain_seconds": report["plain_seconds"],
         "traffic_bytes": report["traffic_bytes"], "wire_bytes": report["wire_bytes"],
         "break_even_gbps": report["break_even_gbps"], "first_seconds": report["first_seconds"],
         "codec_seconds": report["codec_seconds"], "lanes": report["lanes"], "bucket_elements": report["bucket_elements"],
         "trial": report["trial"]},
    ]


def _agent(net: Namespaces, folder: str) -> Path:
    agent = Path(folder, "agent")
    agent.write_text(_AGENT.format(stem=net.namespace(0)[:-1]))  # then the host's number
    agent.chmod(0o755)
    return agent


def _write_layout(shapes: list[tuple[int, ...]], path: Path) -> str:
    ends = list(itertools.accumulate(map(math.prod, shapes), initial=0))
    layout = [{"name": f"layer{index}", "shape": shape, "offset": end} for index, (shape, end) in enumerate(zip(shapes, ends))]
    path.write_text(json.dumps(layout))
    return str(path)


def _run(net: Namespaces, agent: Path, arguments: list[str]) -> str:
    hosts = ",".join(f"{net.address(rank)}:{net.per_host}" for rank in range(0, net.workers, net.per_host))
    settings = {"plm_rsh_agent": str(agent), "btl": "tcp,vader,self", "btl_tcp_if_include": net.interface,
                "oob_tcp_if_include": net.interface, "mpi_yield_when_idle": "1"}
    command = ["mpirun", "--allow-run-as-root", "--host", hosts, "--bind-to", "none", "-n", str(net.workers)]
    for key, value in settings.items():
        command += ["--mca", key, value]
    command += [TOOL, "allreduce", *arguments]
    inside = "hostname worker0 && exec " + shlex.join(command)
    done = subprocess.run([*net.command_prefix(0), "unshare", "--uts", "sh", "-c", inside], capture_output=True, text=True,
                          timeout=_LONGEST, env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
