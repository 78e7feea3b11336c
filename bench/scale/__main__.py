"""How do all-reduces scale beyond the machines at hand? `thinwire allreduce` itself on a cluster that SimGrid simulates (SMPI): the program's real messages
and codes, on a network of the rates given, with what each rank computes measured as it computes it. One thread plays all ranks.

Each rank has --elements, or as many as memory allows: the table says how many. "auto" is what attach() with no spec would try first: of what auto:quality=safe may
take the one that `thinwire plan` foretells the shortest step of, or plain sums. "gather" sends W - 1 messages to all others, so that it is left out
beyond 64 ranks. "its bytes" is what the plain sum's bytes alone take around a ring. Simulations that the file holds are kept: the same command goes on
where it stopped. With --network-alone computation takes no time: nearly the same is told every time, however busy this machine is. A picture stands beside the
file. Wants SimGrid (Debian: libsimgrid-dev) when thinwire is built (preset "release").

    .venv/bin/python -m bench.scale --out out/scale.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from bench.scale.auto import PLAIN, tried_by_auto
from bench.scale.simulation import Cluster, build, run
from bench.speedups import draw
from bench.training.network import parse_link

_AUTO = "auto"
_SPECS = f"bf16;casq:bits=2,reduce=gather;casq:bits=2,reduce=scatter;{_AUTO}"
_MEMORY = 16 * 2**30  # bytes, for all ranks
_BYTES_AN_ELEMENT = 24  # gradients, means, residual, scratch and what is on its way
_MOST_GATHERING = 64


def elements_of(ranks: int, most: int) -> int:
    return min(most, _MEMORY // _BYTES_AN_ELEMENT // ranks // 1000 * 1000)


def row_of(cluster: Cluster, rate: str, spec: str, most: int, repetitions: int, computes: bool) -> dict:
    elements = elements_of(cluster.ranks, most)
    begin = time.monotonic()
    simulated = tried_by_auto(cluster, elements) if spec == _AUTO else spec
    two_levels = cluster.ranks_a_host > 1 and simulated != PLAIN
    report = run(cluster, "none" if simulated == PLAIN else simulated, elements, repetitions, two_levels=two_levels, computes=computes)
    if simulated == PLAIN:
        report["seconds"] = report["plain_seconds"]
    return {"link": rate, "payload_bits_per_second": 8 * cluster.bytes_per_second, "ranks": cluster.ranks, "ranks_a_host": cluster.ranks_a_host,
            "elements": elements, "computes": computes, "compressor": spec, "spec": simulated, "seconds": report["seconds"], "plain_seconds": report["plain_seconds"],
            "ring_seconds": cluster.ring_seconds(elements), "codec_seconds": report["codec_seconds"],
            "latency_seconds": cluster.latency_seconds, "round_seconds": report["round_seconds"], "lanes": report["lanes"],
            "bucket_elements": report["bucket_elements"], "traffic_bytes": report["traffic_bytes"],
            "plain_traffic_bytes": report["plain_traffic_bytes"], "simulated_in": time.monotonic() - begin}  # fmt: skip


def table(rows: list[dict]) -> str:
    lines = [f"{'link':<9}{'ranks':>6}{'a host':>8}{'elements':>12}  {'compressor':<33}{'plain ms':>9}{'its bytes':>10}{'ms':>8}{'speed-up':>9}"]
    for row in rows:
        name = row["compressor"] if row["compressor"] == row["spec"] else f"{row['compressor']}: {row['spec']}"
        lines.append(f"{row['link']:<9}{row['ranks']:>6}{row['ranks_a_host']:>8}{row['elements']:>12,}  {name:<33}"
                     f"{1e3 * row['plain_seconds']:>9.1f}{1e3 * row['ring_seconds']:>10.1f}{1e3 * row['seconds']:>8.1f}"
                     f"{row['plain_seconds'] / row['seconds']:>9.2f}")
    return "\n".join(lines)


def group_of(row: dict) -> str:
    a_host = row["ranks_a_host"]
    hosts = f"{row['ranks']} hosts" if a_host == 1 else f"{row['ranks'] // a_host} hosts of {a_host}"
    return f"{hosts}\n{row['elements'] / 1e6:g} M float32"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="16,64", help="default 16,64")
    parser.add_argument("--ranks-a-host", default="1,8", help="1: each has a link of its own; more: on two levels (default 1,8)")
    parser.add_argument("--links", default="1gbit,10gbit", help="rate of a host's link, both ways (default 1gbit,10gbit)")
    parser.add_argument("--specs", default=_SPECS, help=f"default {_SPECS}")
    parser.add_argument("--elements", type=int, default=25_600_000, help="at most, of each rank (default 25600000)")
    parser.add_argument("--network-alone", action="store_true", help="as if computation took no time")
    parser.add_argument("--repetitions", type=int, default=3, help="of which the median counts (default 3)")
    parser.add_argument("--out", type=Path, default=Path("out/scale.json"), help="default out/scale.json")
    options = parser.parse_args()
    try:
        build()
    except subprocess.CalledProcessError as error:
        print(f"bench.scale: the simulated tool cannot be built; install libsimgrid-dev, and run scripts/cmake_build.sh release\n{error.stdout}", file=sys.stderr)
        return 1
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for ranks in map(int, options.ranks.split(",")):
        for a_host in map(int, options.ranks_a_host.split(",")):
            if ranks % a_host:
                parser.error(f"--ranks-a-host {a_host}; allowed: what divides the {ranks} ranks")
            for rate in options.links.split(","):
                cluster = Cluster(ranks, a_host, parse_link(rate).bits_per_second)
                for spec in options.specs.split(";"):
                    known = {"link": rate, "ranks": ranks, "ranks_a_host": a_host, "compressor": spec, "elements": elements_of(ranks, options.elements),
                             "computes": not options.network_alone}  # fmt: skip
                    if ("gather" in spec and cluster.hosts > _MOST_GATHERING) or any(known.items() <= ({"computes": True} | row).items() for row in rows):
                        continue
                    rows.append(row_of(cluster, rate, spec, options.elements, options.repetitions, not options.network_alone))
                    options.out.write_text(json.dumps({"command": " ".join(["python -m bench.scale", *sys.argv[1:]]), "rows": rows}, indent=1) + "\n")
                    print(table(rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(rows))
    picture = options.out.with_suffix(".svg")
    draw({(f"{row['link']} a host", group_of(row), row["compressor"]): row["plain_seconds"] / row["seconds"] for row in rows}, picture)
    print(f"\n{picture}: a picture of these")
    return 0


if __name__ == "__main__":
    sys.exit(main())
