"""The report's plots, as SVG text to put into the page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from bench.training import comparison
from bench.training.table import shortened
from bench.training.tasks import task_of

_INK, _FAINT = "#1f2933", "#d5dbe1"
_OURS = ("#1d4ed8", "#0d9488", "#7c3aed", "#0891b2", "#4d7c0f", "#be185d")
REST = "#c3cad2"  # of thinwire's, those for which no colour is left
_OTHERS = {"plain": "#6b7280", "bf16": "#d97706", "powersgd": "#b4517f", "fp16": "#a16207"}
PHASES = {"compute": "#94a3b8", "compress": "#f59e0b", "wire": "#2563eb"}
_STYLE = {
    "svg.fonttype": "none",  # text stays text, in the page's own font
    "font.family": "sans-serif", "font.size": 10, "text.color": _INK,
    "axes.labelcolor": _INK, "axes.edgecolor": _FAINT, "axes.grid": True, "grid.color": "#eceff3",
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "xtick.color": "#52606d", "ytick.color": "#52606d", "lines.linewidth": 1.9,
}
_SIZE_INCHES = (5.0, 3.3)
_POINTS = 160  # of a curve, at most
_FEW_BARS, _NARROW = 12, 0.62  # more than so many stand closer together, by this factor
_NAME_WIDTH = 18


def colours(names: Sequence[str]) -> dict[str, str]:
    """One colour a compressor: warm or dark grey for PyTorch's own, cool for thinwire's first ones, REST for the others."""
    ours = [name for name in names if name.split(":")[0] not in _OTHERS]
    known = dict(zip(ours, _OURS)) | {name: _OTHERS[name.split(":")[0]] for name in names if name not in ours}
    return {name: known.get(name, REST) for name in names}


def score_over_time(runs: list[dict], colour: dict[str, str]) -> str:
    """Test score (accuracy in per cent, perplexity, RMSE) over seconds of training; a line per training."""
    task = task_of(runs[0] if runs else {})
    scale = task.scale
    axes = _axes("seconds of training", f"test {task.score}{',' + task.unit if task.unit else ''}")
    for run in runs:
        elapsed = comparison.cumulated(run["step_seconds"])
        axes.plot([elapsed[step - 1] for step, _ in run["accuracies"]],
                  [scale * score for _, score in run["accuracies"]],
                  marker="o", markersize=3.5, **_line(runs, run, colour))
    if task.logarithmic:
        axes.set_yscale("log")
    elif not task.relative:
        best = max((scale * score for run in runs for _, score in run["accuracies"]), default=100)
        lowest = min((scale * run["accuracies"][0][1] for run in runs), default=0)
        axes.set_ylim(bottom=max(lowest - 2, best - 30), top=best + 2)
    axes.set_xlim(left=0)
    return _svg(axes.figure, task.score)


def loss_over_bytes(runs: list[dict], colour: dict[str, str]) -> str:
    """Smoothed training loss over megabytes that each worker sent, logarithmic."""
    axes = _axes("MB sent by each worker", "training loss")
    for run in runs:
        sent = comparison.cumulated(run["step_bytes"] or
                                    [run["arithmetic_bytes"] / run["steps"]] * run["steps"])
        losses = comparison.smoothed(run["losses"])
        kept = _thinned(len(losses), skip=min(comparison.SMOOTHING_STEPS, len(losses)) // 2)
        axes.plot([sent[step] / 1e6 for step in kept], [losses[step] for step in kept],
                  **_line(runs, run, colour))
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    finite = [loss for run in runs for loss in comparison.smoothed(run["losses"]) if loss < 1e3]
    highest = 2.5 if not runs or not task_of(runs[0]).relative else 10
    axes.set_ylim(bottom=0, top=min(max(finite, default=highest), highest))
    return _svg(axes.figure, "loss")


def step_split(rows: list[dict]) -> str:
    """A bar a compressor: milliseconds of a step in compute, compress and exposed wire."""
    axes = _axes("ms a step", "", _bars_size(len(rows)))
    left = [0.0] * len(rows)
    for phase, shade in PHASES.items():
        widths = [1e3 * (row[f"{phase}_seconds"] or 0.0) for row in rows]
        axes.barh(range(len(rows)), widths, left=left, color=shade, height=0.62)
        left = [start + width for start, width in zip(left, widths)]
    for place, end in enumerate(left):
        axes.annotate(f"{end:.0f}", (end, place), (4, 0), textcoords="offset points",
                      va="center", fontsize=9.5)
    _name_bars(axes, rows)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    return _svg(axes.figure, "split")


def score_differences(rows: list[dict], colour: dict[str, str]) -> str:
    """Mean difference to plain in points or per cent, with its 95 % interval."""
    rows = [row for row in rows if row["accuracy_interval"] is not None]
    task = task_of(rows[0] if rows else {})
    axes = _axes(f"{'%' if task.relative else 'points'} of test {task.score} against plain", "",
                 _bars_size(len(rows)))
    axes.axvline(0, color="#9aa5b1", linewidth=1)
    for place, row in enumerate(rows):
        axes.errorbar(task.difference(row), place,
                      xerr=task.interval(row), color=colour[row["compressor"]],
                      marker="o", markersize=5, capsize=3.5)
    _name_bars(axes, rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    return _svg(axes.figure, "differences")


def _bars_size(rows: int) -> tuple[float, float]:
    height = 0.42 * rows * (1 if rows <= _FEW_BARS else _NARROW)
    return _SIZE_INCHES[0], max(1.0 + height, _SIZE_INCHES[1] * 0.75)


def _name_bars(axes: Axes, rows: list[dict]) -> None:
    lines = 2 if len(rows) <= _FEW_BARS else 1
    axes.set_yticks(range(len(rows)), [_short(row["compressor"], lines) for row in rows])
    axes.tick_params(axis="y", length=0, labelcolor=_INK, labelsize=None if lines > 1 else 8.5)
    axes.grid(axis="y", visible=False)


def _axes(x_label: str, y_label: str, size: tuple[float, float] = _SIZE_INCHES) -> Axes:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
    return axes


def _line(runs: list[dict], run: dict, colour: dict[str, str]) -> dict:
    """With several seeds the lines of a compressor are thin, and told apart by none. What has no colour lies behind."""
    several = sum(each["compressor"] == run["compressor"] for each in runs) > 1
    shade = colour[run["compressor"]]
    return {"color": shade, "zorder": 1 if shade == REST else 2} | ({"linewidth": 1.0, "alpha": 0.6} if several else {})


def _thinned(count: int, skip: int) -> list[int]:
    stride = max(1, (count - skip) // _POINTS)
    return sorted({*range(skip, count, stride), count - 1})


def _short(name: str, lines: int) -> str:
    """A name for the margin; long ones are shortened in the middle of what stands behind the first colon."""
    if len(name) <= _NAME_WIDTH:
        return name
    if lines == 1:
        return shortened(name, 2 * _NAME_WIDTH)
    head, colon, rest = name.partition(":")
    return shortened(head, _NAME_WIDTH) + (f"{colon}\n{shortened(rest, _NAME_WIDTH)}" if colon else "")


def _svg(figure: Figure, identity: str) -> str:
    """The figure without prologue and metadata; `identity` keeps its ids apart from others'."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": identity}):
        figure.savefig(buffer, format="svg", transparent=True,
                       metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{identity}-", text)
    text = re.sub(r"font-family: [^;]*; ", "", text)  # the page's own
    box = re.search(r'viewBox="[^"]*"', text)
    return re.sub(r"<svg [^>]*>", f'<svg role="img" aria-label="{identity}" {box[0]}>', text,
                  count=1)
