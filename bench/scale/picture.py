"""A picture of simulated rows: how many times as fast as the plain sum on the same cluster."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

_COLOURS = ["#9aa5b1", "#e8a33d", "#2f6db3", "#4c9f70", "#8a63b5", "#7b8794"]


def cluster_of(row: dict) -> str:
    a_host = row["ranks_a_host"]
    hosts = f"{row['ranks']} hosts" if a_host == 1 else f"{row['ranks'] // a_host} hosts of {a_host}"
    return f"{hosts}\n{row['elements'] / 1e6:g} M float32"


def draw(rows: list[dict], target: Path) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "thinwire"
    links, clusters, compressors = (list(dict.fromkeys(map(key, rows))) for key in (lambda row: row["link"], cluster_of, lambda row: row["compressor"]))
    figure = Figure(figsize=(8, 0.8 + 1.9 * len(links)), layout="constrained")
    width = 0.8 / len(compressors)
    for axes, link in zip(figure.subplots(len(links), squeeze=False)[:, 0], links):
        for index, compressor in enumerate(compressors):
            found = {cluster_of(row): row["plain_seconds"] / row["seconds"] for row in rows if (row["link"], row["compressor"]) == (link, compressor)}
            places = [place + index * width for place, cluster in enumerate(clusters) if cluster in found]
            bars = axes.bar(places, [found[cluster] for cluster in clusters if cluster in found], width, color=_COLOURS[index % len(_COLOURS)])
            axes.bar_label(bars, fmt="%.1f", fontsize=7)
        axes.set_xticks([place + 0.4 - width / 2 for place in range(len(clusters))], clusters, fontsize=8)
        axes.set_xlim(-0.3, len(clusters))
        axes.set_title(f"{link} a host: times as fast as the plain sum", loc="left", fontsize=10)
        axes.axhline(1, color="#333333", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    patches = [Patch(color=_COLOURS[index % len(_COLOURS)], label=name) for index, name in enumerate(compressors)]
    figure.legend(handles=patches, ncols=3, frameon=False, fontsize=8, loc="outside upper right")
    figure.savefig(target, metadata={"Date": None})
