"""What an embedding's gradient costs to average: bytes, and times on a shaped link between network namespaces.

Bytes are what a worker sends in the last of three steps, by the collectives' standard algorithms, everything included.
Times are medians of the slowest worker's, from a gradient in memory to its mean.

    .venv/bin/python -m bench.sparse traffic          # the table of bytes; needs build/thinwire
    .venv/bin/python -m bench.sparse times            # as root
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.sparse import rows, timing
from bench.training import interrupts, network, specs

_TOOL = Path("build/thinwire")
_STEPS = 3  # auto and peel go by the steps before
_BASELINES = "none;coordinates;sparcml;omnireduce"
_MODES = ("s2:mode=exact;s2:mode=gather;s2:mode=split;s2:mode=auto;s2:mode=peel;s2:mode=sketch,ratio=0.25;"
          "s2:mode=exact/bf16;s2:mode=exact/casq:bits=2;s2:mode=exact/casq:bits=2,reduce=scatter")


def main() -> int:
    arguments = _parser().parse_args()
    interrupts.terminate_as_interrupt()
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        found = _traffic(arguments) if arguments.what == "traffic" else _times(arguments)
    except (network.NetworkError, ValueError) as error:
        print(f"bench.sparse: {error}", file=sys.stderr)
        return 1
    command = "python -m bench.sparse " + " ".join(sys.argv[1:])
    (arguments.out / f"sparse_{arguments.what}.json").write_text(json.dumps({"command": command, "rows": found}, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="bench.sparse", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = result.add_argument
    add("what", choices=["traffic", "times"])
    add("--specs", default=f"{_BASELINES};{_MODES}", help="what to compare")
    add("--workers", default=None, help="traffic: counts (2,4,8,16); times: one (4)")
    add("--width", type=int, default=None, help="entries of a row (traffic: 64; times: 256)")
    add("--links", default="1gbit,100mbit", help="times: rates, both ways for each worker")
    add("--repetitions", type=int, default=7, help="times: of which the median counts")
    add("--out", type=Path, default=Path("out/sparse"), help="folder for the figures")
    return result


def _traffic(arguments: argparse.Namespace) -> list[dict]:
    counts = [int(count) for count in (arguments.workers or "2,4,8,16").split(",")]
    width, found = arguments.width or 64, []
    for kind in (rows.RealText(), rows.Independent()):
        print(f"\n{kind.name}: {kind.description}, rows of {width}; MB that a worker sends, of dense all-reduce's share\n")
        print("  ".join([f"{'spec':<44}", "rounds", *(f"{count:>13} w" for count in counts)]))
        table: dict[str, list[str]] = {}
        for count in counts:
            with tempfile.TemporaryDirectory() as folder:
                gradients = _write(kind, width, count, Path(folder))
                plain = None
                for spec in specs.split_specs(arguments.specs):
                    figures = _exchange(spec, gradients)
                    plain = plain or figures["traffic_bytes"]
                    share = figures["traffic_bytes"] / plain
                    table.setdefault(spec, [f"{figures['rounds']:6.0f}"]).append(
                        f"{figures['traffic_bytes'] / 1e6:7.3f} {100 * share:5.1f} %")
                    found.append({"rows": kind.description, "width": width, "workers": count, "spec": spec,
                                  "traffic_bytes": figures["traffic_bytes"], "rounds": figures["rounds"],
                                  "share_of_none": share, "nmse_mean": figures["nmse_mean"]})
        for spec, cells in table.items():
            print("  ".join([f"{spec:<44}", *cells]), flush=True)
    return found


def _write(kind: rows.RealText | rows.Independent, width: int, workers: int, folder: Path) -> dict[str, Path]:
    layout = folder / "layout.json"
    layout.write_text(json.dumps([{"name": "embedding", "shape": [kind.rows, width], "offset": 0}]))
    gradients = np.lib.format.open_memmap(folder / "g.npy", "w+", np.float32, (_STEPS, workers, kind.rows * width))
    for step in range(_STEPS):
        for worker in range(workers):
            gradients[step, worker] = rows.gradient(kind, width, step, worker).ravel()
    gradients.flush()
    return {"--input": folder / "g.npy", "--layout": layout}


def _exchange(spec: str, gradients: dict[str, Path]) -> dict:
    options = [str(each) for pair in gradients.items() for each in pair]
    out = subprocess.run([_TOOL, "exchange", "--compressor", spec, *options, "--json"], capture_output=True, text=True)
    if out.returncode:
        raise ValueError(f"{_TOOL} exchange --compressor {spec} failed: {out.stderr.strip()}")
    return json.loads(out.stdout)["per_step"][-1]


def _times(arguments: argparse.Namespace) -> list[dict]:
    network.require_root()
    kind, width, found = rows.Zipf(), arguments.width or 256, []
    wanted = specs.split_specs(arguments.specs)
    for name in arguments.links.split(","):
        link = network.parse_link(name)
        with network.Namespaces(int(arguments.workers or 4), link) as net:
            measured = timing.measure(net, wanted, width, arguments.repetitions)
        print(f"\n{link.name}, {net.workers} workers, {kind.description}, rows of {width}\n")
        print(f"{'spec':<44}      ms   MB sent  MB counted")
        for row in measured:
            sent = "-" if row["traffic_bytes"] is None else f"{row['traffic_bytes'] / 1e6:.2f}"
            print(f"{row['spec']:<44}{1e3 * row['seconds']:8.1f}  {sent:>8}  {row['wire_bytes'] / 1e6:10.2f}", flush=True)
            found.append({"link": link.name, "workers": net.workers, "width": width, **row})
    return found


if __name__ == "__main__":
    sys.exit(main())
