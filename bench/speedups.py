"""A picture of bars: how many times as fast as the plain sum compressors are, in groups."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

_COLOURS = ["#9aa5b1", "#e8a33d", "#2f6db3", "#4c9f70", "#8a63b5", "#c0504d", "#3d4852"]


def draw(speedups: dict[tuple[str, str, str], float], target: Path) -> None:
    """speedups: by the title of a chart, the name of a group in it, and the compressor. All charts have the same groups and compressors."""
    matplotlib.rcParams["svg.hashsalt"] = "thinwire"
    titles, groups, compressors = (list(dict.fromkeys(names)) for names in zip(*speedups))
    figure = Figure(figsize=(9, 1 + 2.1 * len(titles)), layout="constrained")
    width = 0.8 / len(compressors)
    for axes, title in zip(figure.subplots(len(titles), squeeze=False)[:, 0], titles):
        for index, compressor in enumerate(compressors):
            found = {place: speedups[title, group, compressor] for place, group in enumerate(groups) if (title, group, compressor) in speedups}
            bars = axes.bar([place + index * width for place in found], list(found.values()), width, color=_COLOURS[index % len(_COLOURS)])
            axes.bar_label(bars, fmt="%.1f", fontsize=7)
        axes.set_xticks([place + 0.4 - width / 2 for place in range(len(groups))], groups, fontsize=8)
        axes.set_xlim(-0.3, len(groups))
        axes.set_title(f"{title}: times as fast as the plain sum", loc="left", fontsize=10)
        axes.axhline(1, color="#333333", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    patches = [Patch(color=_COLOURS[index % len(_COLOURS)], label=name) for index, name in enumerate(compressors)]
    figure.legend(handles=patches, ncols=3, frameon=False, fontsize=8, loc="outside upper right")
    figure.savefig(target, metadata={"Date": None})
