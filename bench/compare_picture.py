"""Draws docs/compare.svg: what compressors lose of the gradients in examples/gradients, over the bits they take.

    scripts/cmake_build.sh release thinwire
    .venv/bin/python -m bench.compare_picture docs/compare.svg
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

TOOL = Path("build/thinwire")
SAMPLES = Path("examples/gradients")
_NAMES = {"cnn": "a CNN (Fashion-MNIST)", "lstm": "an LSTM language model, without its embedding"}
_COLOURS = {
    "casq:rate": "#15803d", "casq:bits": "#65a30d", "eden:bits": "#7c3aed", "int:bits": "#2563eb", "qsgd:bits": "#0e7490",
    "topk:values=bf16,density": "#d97706", "powersgd:rank": "#b4517f", "gradiveq:refresh=every,ratio": "#be123c",
}  # fmt: skip
_OTHERS = "#c4c8ce"


def draw(axes: Axes, name: str) -> None:
    command = [TOOL, "compare", "--json", "--input", SAMPLES / f"{name}.npy", "--layout", SAMPLES / f"{name}.json"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    axes.plot(result["bits"], result["bounds"]["gaussian"], "--", color="#888", lw=1, label="bound: Gaussian, one scale")
    axes.plot(result["bits"], result["bounds"]["blocks"], ":", color="#444", lw=1.2, label="bound: Gaussian, scales of blocks")
    others = "all others"
    for curve in sorted(result["curves"], key=lambda curve: curve["compressor"] in _COLOURS):
        label = curve["compressor"]
        colour = _COLOURS.get(label)
        x, y = zip(*((point["bits"], point["error"]) for point in curve["points"]))
        axes.plot(x, y, ".-", color=colour or _OTHERS, lw=1.8 if label == "casq:rate" else 1, ms=4, label=label if colour else others)
        others = others if colour else "_"
    axes.set(xscale="log", yscale="log", xlim=(0.08, 10), ylim=(1e-5, 2), xlabel="bits an entry, all counted")
    axes.set_xticks(result["bits"], [f"{bits:g}" for bits in result["bits"]])
    axes.minorticks_off()
    axes.set_title(_NAMES[name], loc="left", fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    matplotlib.rcParams["svg.hashsalt"] = "thinwire"
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name in zip(panels, _NAMES):
        draw(axes, name)
    panels[0].set_ylabel("share of the energy that is lost")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(sys.argv[1], metadata={"Date": None} if sys.argv[1].endswith("svg") else None)


if __name__ == "__main__":
    main()
