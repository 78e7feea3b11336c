"""A picture of a timeline that `thinwire allreduce --trace` wrote: what a worker's codec and wire did, a band for each.

A band has a stripe for each lane. Beside it stands how much of the reduction it was busy, and below how much both were.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

_COLOURS = {"encode": "#2f6db3", "decode": "#4c9f70", "wire": "#e8a33d"}
_OTHER = "#9aa5b1"
_HEIGHT = 0.8  # of a band


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sorted and disjoint."""
    result: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def length(intervals: Iterable[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in intervals)


def events_of(trace: dict, worker: int) -> list[dict]:
    """What a worker did, each with `kind` ("wire", or what the codec did), `lane`, `begin` and `end` in milliseconds."""
    found = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == worker]
    first = min(event["ts"] for event in found)
    return [{"kind": "wire" if event["tid"] % 2 else event["name"], "lane": event["tid"] // 2,
             "begin": (event["ts"] - first) / 1e3, "end": (event["ts"] + event["dur"] - first) / 1e3} for event in found]


def shares(events: list[dict]) -> dict[str, float]:
    """Of the time from the first to the last event, how much codec and wire were busy, and both at once."""
    codec = union((event["begin"], event["end"]) for event in events if event["kind"] != "wire")
    wire = union((event["begin"], event["end"]) for event in events if event["kind"] == "wire")
    whole = max(event["end"] for event in events)
    both = length(codec) + length(wire) - length(union(codec + wire))
    return {"codec": length(codec) / whole, "wire": length(wire) / whole, "both": both / whole}


def draw(events: list[dict], title: str, target: Path) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "thinwire"
    lanes = 1 + max(event["lane"] for event in events)
    stripe = _HEIGHT / lanes
    figure = Figure(figsize=(9, 1.4 + 0.4 * lanes), layout="constrained")
    axes = figure.subplots()
    for event in events:
        band = 0 if event["kind"] == "wire" else 1
        bottom = band - _HEIGHT / 2 + (lanes - 1 - event["lane"]) * stripe
        axes.broken_barh([(event["begin"], event["end"] - event["begin"])], (bottom, 0.9 * stripe),
                         color=_COLOURS.get(event["kind"], _OTHER), linewidth=0)
    share = shares(events)
    axes.set_yticks([1, 0], [f"codec\nbusy {share['codec']:.0%}", f"wire\nbusy {share['wire']:.0%}"])
    axes.set_xlabel(f"milliseconds; both busy {share['both']:.0%} of the time")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlim(0, max(event["end"] for event in events))
    axes.spines[["top", "right"]].set_visible(False)
    drawn = [kind for kind in _COLOURS if any(event["kind"] == kind for event in events)]
    figure.legend(handles=[Patch(color=_COLOURS[kind], label=kind) for kind in drawn], ncols=3, frameon=False, fontsize=9,
                  loc="outside upper right")
    figure.savefig(target, metadata={"Date": None})
