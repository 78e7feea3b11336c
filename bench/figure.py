"""Draws README's figure from results of ./run: a training step's time at each link, split into what it is spent on.

    .venv/bin/python -m bench.figure docs/measurements/link_100mbit.json docs/measurements/link_1gbit.json docs/step_time.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.training.plots import PHASES

_KEYS = {phase: f"{phase}_seconds" for phase in PHASES}


def draw(axes: Axes, results: dict) -> None:
    rows = results["summary"][::-1]
    left = [0.0] * len(rows)
    for phase, colour in PHASES.items():
        widths = [1000 * row[_KEYS[phase]] for row in rows]
        axes.barh([row["compressor"] for row in rows], widths, left=left, color=colour, label=phase, height=0.62)
        left = [a + b for a, b in zip(left, widths)]
    for row, end in zip(rows, left):
        axes.annotate(f" {end:.0f} ms · {row['speedup']:.1f}x", (end, row["compressor"]), va="center", fontsize=9)
    axes.set_title(f"{results['settings']['link']}, {results['settings']['workers']} workers", loc="left", fontsize=10)
    axes.set_xlim(right=1.22 * max(left))
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    *sources, target = map(Path, sys.argv[1:])
    matplotlib.rcParams["svg.hashsalt"] = "thinwire"
    figure = Figure(figsize=(8, 1.1 + 1.45 * len(sources)), layout="constrained")
    for axes, source in zip(figure.subplots(len(sources), squeeze=False)[:, 0], sources):
        draw(axes, json.loads(source.read_text()))
    figure.axes[-1].set_xlabel("milliseconds a training step")
    figure.axes[0].legend(ncols=len(PHASES), frameon=False, fontsize=9, loc="lower right")
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
