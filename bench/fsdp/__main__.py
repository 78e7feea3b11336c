"""Measures training steps of FSDP2 on Gloo between network namespaces: fully_shard() as it is ("plain"), with thinwire's exact
reduce-scatter ("none"), and compressed; behind a + by what parameters are gathered. With --replicas, on a mesh of two dimensions, where
thinwire averages between replicas.

Times are medians of the slowest worker's steps: forward and backward pass, gathers of the parameters among them, and the optimizer. MB sent
is what left worker 0's interface in a step, headers and all, which with --per-host is its host's.

    .venv/bin/python -m bench.fsdp --out out/fsdp.json
    .venv/bin/python -m bench.fsdp --replicas 2 --per-host 2    # each replica within a host
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.network import workers
from bench.training import interrupts, network, specs

_SPECS = "plain;none;bf16;casq:bits=2;casq:rate=1"
_GATHERED = "none+bf16;casq:bits=2+bf16;casq:bits=2+casq:bits=4"  # on a mesh of one dimension


def main() -> int:
    arguments = _parser().parse_args()
    interrupts.terminate_as_interrupt()
    try:
        network.require_root()
    except network.NetworkError as error:
        print(f"bench.fsdp: {error}", file=sys.stderr)
        return 1
    for option, parts in (("--replicas", arguments.replicas), ("--per-host", arguments.per_host)):
        if parts < 1 or arguments.workers % parts:
            print(f"bench.fsdp: {option} {parts}; allowed: what divides the {arguments.workers} workers", file=sys.stderr)
            return 1
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in arguments.links.split(","):
        link = network.parse_link(name)
        measured = arguments.specs or (_SPECS if arguments.replicas > 1 else f"{_SPECS};{_GATHERED}")
        job = {"specs": specs.split_specs(measured), "elements": arguments.elements, "steps": arguments.steps,
               "replicas": arguments.replicas}
        with network.Namespaces(arguments.workers, link, arguments.per_host) as net:
            job["interface"] = net.interface
            rows += [{"link": link.name, **row} for row in workers.run(net, "bench.fsdp.worker", job)]
        command = " ".join(["python -m bench.fsdp", *sys.argv[1:]])
        result = {"command": command, "workers": arguments.workers, "per_host": arguments.per_host, "rows": rows}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows))
    return 0


def table(rows: list[dict]) -> str:
    lines = [f"{'link':<9}{'compressor':<26}{'ms a step':>10}{'speed-up':>10}{'MB sent':>10}"]
    for row in rows:
        plain = next((other["seconds"] for other in rows if (other["link"], other["compressor"]) == (row["link"], "plain")), None)
        speedup = f"{plain / row['seconds']:.2f}" if plain else "-"
        lines.append(f"{row['link']:<9}{row['compressor']:<26}{1e3 * row['seconds']:>10.0f}{speedup:>10}{row['wire_bytes'] / 1e6:>10.2f}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="bench.fsdp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = result.add_argument
    add("--links", default="1gbit,100mbit", help="rates, both ways for each namespace (default 1gbit,100mbit)")
    add("--elements", type=int, default=25_000_000, help="parameters of the model, about (default 25000000)")
    add("--workers", type=int, default=4, help="default 4")
    add("--replicas", type=int, default=1, help="1: a mesh of one dimension (default)")
    add("--per-host", type=int, default=1, metavar="L", help="workers that share a namespace and its link (default 1)")
    add("--steps", type=int, default=5, help="of which the median counts (default 5)")
    add("--specs", help=f"what to measure (default {_SPECS}, and on a mesh of one dimension {_GATHERED})")
    add("--out", type=Path, default=Path("out/fsdp.json"), help="default out/fsdp.json")
    return result


if __name__ == "__main__":
    sys.exit(main())
