"""Measures all-reduces of gradients on shaped links between network namespaces.

Times are medians of the slowest worker's. The table's columns: limit: the time that the bytes sent take at the link's rate;
times: as fast as the plain sum; MB sent: by a worker, by the collectives' standard algorithms; counted: what left its
interface, headers and all; even: the rate in Gb/s below which compressing pays even if nothing overlaps.

    .venv/bin/python -m bench.network --out out/network
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from pathlib import Path

from bench.network import ddp_path, mpi_path, plot, timeline
from bench.training import interrupts, network, specs

_LINKS = "100mbit,1gbit,10gbit"
_ELEMENTS = "1000000,25600000"
_MPI = "bf16;casq:bits=2,reduce=gather;casq:bits=2,reduce=scatter"
_DDP = f"plain;bf16;powersgd;{';'.join(_MPI.split(';')[1:])}"
# Of a link's rate, what TCP's payload can have: full segments with their headers and the gaps between frames.
_PAYLOAD_SHARE = 1448 / 1514
_SHORT_ELEMENTS, _MORE_REPETITIONS = 4_000_000, 5  # of which a step takes milliseconds, as long as what else the machine does now and then
_UNEVEN = 1.2  # times the median: a mean that is worth a line of its own
_HEADINGS = ["link", "elements", "path", "compressor", "ms", "limit", "/limit", "times", "MB sent", "counted", "even"]


def main() -> int:
    arguments = _parser().parse_args()
    interrupts.terminate_as_interrupt()
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        network.require_root()
    except network.NetworkError as error:
        print(f"bench.network: {error}", file=sys.stderr)
        return 1
    rows = []
    for name in arguments.links.split(","):
        link = network.parse_link(name)
        with network.Namespaces(arguments.workers, link, arguments.per_host) as net:
            for elements in map(int, arguments.elements.split(",")):
                rows += _measure(net, link, elements, arguments)
                _write(arguments, rows)
    print(f"\n{_table(rows)}\n\n{_averages(rows)}{arguments.out / 'network.json'}, {arguments.out / 'network.svg'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="bench.network", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = result.add_argument
    add("--links", default=_LINKS, help=f"rates, both ways for each worker (default {_LINKS})")
    add("--elements", default=_ELEMENTS, help=f"lengths of the gradient (default {_ELEMENTS})")
    add("--workers", type=int, default=4, help="default 4")
    add("--per-host", type=int, default=1,
        help="workers that share a namespace and its link; specs like hosts:casq:bits=2 exchange on two levels there (default 1)")
    add("--repetitions", type=int, default=5, help=f"of which the median counts, {_MORE_REPETITIONS} times as many below {_SHORT_ELEMENTS:,} elements (default 5)")
    add("--mpi", default=_MPI, help=f"what to measure through MPI, beside plain sums (default {_MPI}); '' for nothing")
    add("--ddp", default=_DDP, help=f"what to measure in a DDP backward (default {_DDP}); '' for nothing")
    add("--lanes", type=int, help="of thinwire (default: chosen by trials)")
    add("--layers", action="store_true", help="through MPI too, a gradient in layers like ResNet-50's, as in DDP")
    add("--warm-up", type=int, default=1, help="through MPI, compressed reductions that do not count (default 1)")
    add("--timelines", action="store_true",
        help="through MPI too, write what encoded, decoded and was on the wire when: a trace for ui.perfetto.dev, and a picture")
    add("--out", type=Path, default=Path("out/network"), help="folder for network.json and network.svg")
    return result


def _measure(net: network.Namespaces, link: network.Link, elements: int, arguments: argparse.Namespace) -> list[dict]:
    found = []
    repetitions = arguments.repetitions * (_MORE_REPETITIONS if elements < _SHORT_ELEMENTS else 1)
    start = mpi_path.start_seconds(net) if arguments.mpi else None
    for spec in specs.split_specs(arguments.mpi):
        _tell(f"{link.name}, {elements:,} elements, MPI, {spec}")
        trace = _trace(arguments, link, elements, spec)
        found += [{**row, "start_seconds": start} for row in
                  mpi_path.measure(net, spec, _shapes(elements, arguments.layers), repetitions, arguments.lanes, arguments.warm_up, trace)]
        if trace:
            title = f"{spec}, {elements / 1e6:g} M float32, {link.name}, {arguments.workers} workers: worker 0"
            timeline.draw(timeline.events_of(json.loads(trace.read_text()), 0), title, trace.with_suffix(".svg"))
    if arguments.ddp:
        _tell(f"{link.name}, {elements:,} elements, DDP")
        found += ddp_path.measure(net, specs.split_specs(arguments.ddp), elements, repetitions, arguments.lanes)
    plains = {row["path"]: row["seconds"] for row in reversed(found) if row["compressor"] == "plain"}
    seen, rows = set(), []
    for row in found:
        key = row["path"], row["compressor"]
        if key in seen:
            continue  # each run through MPI measures the plain sum as well; it is compared to its own
        seen.add(key)
        limit = 8 * _through_a_link(row, arguments.per_host) / link.bits_per_second if link.shaped else 0
        plain = row.pop("plain_seconds", None) or plains.get(row["path"])
        rows.append({"link": link.name, "elements": elements, **row, "limit_seconds": limit or None,
                     "speedup": plain / row["seconds"] if plain and row["traffic_bytes"] else None})
    return rows


def _through_a_link(row: dict, per_host: int) -> float:
    """Bytes, headers included: as counted where workers share a link, and some of what they send does not pass it."""
    return row["wire_bytes"] if per_host > 1 else row["traffic_bytes"] / _PAYLOAD_SHARE


def _trace(arguments: argparse.Namespace, link: network.Link, elements: int, spec: str) -> Path | None:
    name = "_".join([link.name, str(elements), *re.findall(r"\w+", spec)])
    return arguments.out / f"{name}.json" if arguments.timelines else None


def _shapes(elements: int, layers: bool) -> list[tuple[int, ...]]:
    return ddp_path.shapes(elements) if layers else [(elements,)]


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(arguments: argparse.Namespace, rows: list[dict]) -> None:
    settings = {key: str(value) for key, value in vars(arguments).items()}
    command = "python -m bench.network " + " ".join(sys.argv[1:])
    text = json.dumps({"command": command.strip(), "settings": settings, "processor": platform.machine(), "rows": rows}, indent=1)
    (arguments.out / "network.json").write_text(text + "\n")
    plot.draw(rows, arguments.out / "network.svg")


def _table(rows: list[dict]) -> str:
    lines = [_HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    rendered = ["  ".join(cell.ljust(width) if column in (0, 2, 3) else cell.rjust(width)
                          for column, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in lines]
    return "\n".join([rendered[0], "-" * (sum(widths) + 2 * (len(widths) - 1)), *rendered[1:]])


def _averages(rows: list[dict]) -> str:
    """Of rows whose repetitions differ: a cycle that learns before it compresses."""
    return "".join(
        f"{row['link']}, {row['compressor']}: {1e3 * row['mean_seconds']:.0f} ms on average over {row['repetitions']} repetitions,"
        f" {row['speedup'] * row['seconds'] / row['mean_seconds']:.2f} times as fast\n"
        for row in rows if row.get("mean_seconds", 0) > _UNEVEN * row["seconds"])


def _cells(row: dict) -> list[str]:
    def text(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    limit, even = row["limit_seconds"], row.get("break_even_gbps")
    name = row["compressor"].replace("reduce=", "").replace("casq:bits=", "casq ")
    return [row["link"], f"{row['elements'] / 1e6:g} M", row["path"], name, f"{1e3 * row['seconds']:.0f}",
            text(limit and 1e3 * limit, ".0f"), text(limit and row["seconds"] / limit, ".2f"), text(row["speedup"], ".2f"),
            f"{row['traffic_bytes'] / 1e6:.2f}", text(row["wire_bytes"] and row["wire_bytes"] / 1e6, ".2f"),
            text(even, ".1f")]


if __name__ == "__main__":
    sys.exit(main())
