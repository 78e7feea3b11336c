"""A picture of the rows: how many times as fast as the plain sum, by link and compressor."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

_COLOURS = ["#9aa5b1", "#7b8794", "#e8a33d", "#4c9f70", "#2f6db3", "#8a63b5"]


def draw(rows: list[dict], target: Path) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "thinwire"
    rows = [row for row in rows if row["traffic_bytes"]]  # not the backward pass alone
    groups = list(dict.fromkeys((row["path"], row["elements"]) for row in rows))
    links = list(dict.fromkeys(row["link"] for row in rows))
    compressors = list(dict.fromkeys(row["compressor"] for row in rows))
    figure = Figure(figsize=(9, 1 + 2.1 * len(groups)), layout="constrained")
    for axes, (path, elements) in zip(figure.subplots(len(groups), squeeze=False)[:, 0], groups):
        width = 0.8 / len(compressors)
        for index, compressor in enumerate(compressors):
            found = {row["link"]: row["speedup"] for row in rows
                     if (row["path"], row["elements"], row["compressor"]) == (path, elements, compressor)}
            places = [place + index * width for place, link in enumerate(links) if link in found]
            bars = axes.bar(places, [found[link] or 0 for link in links if link in found], width,
                            color=_COLOURS[index % len(_COLOURS)])
            axes.bar_label(bars, fmt="%.1f", fontsize=7)
        axes.set_xticks([place + 0.4 - width / 2 for place in range(len(links))], links)
        axes.set_title(f"{path}, {elements / 1e6:g} M float32: times as fast as the plain sum", loc="left", fontsize=10)
        axes.axhline(1, color="#333333", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    patches = [Patch(color=_COLOURS[index % len(_COLOURS)], label=name) for index, name in enumerate(compressors)]
    figure.legend(handles=patches, ncols=3, frameon=False, fontsize=8, loc="outside upper right")
    figure.savefig(target, metadata={"Date": None})
