"""The table at the end of a job, for a terminal of 100 columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from bench.training.tasks import task_of

WIDTH = 100
_NAME_WIDTH = 25
_UNKNOWN = "-"


@dataclass(frozen=True)
class Column:
    """A column: its heading in two lines, and the text of a summary row in it."""

    heading: tuple[str, str]
    text: Callable[[dict], str]


def _number(row: dict, key: str, scale: float, decimals: int, unit: str = "") -> str:
    value = row[key]
    return _UNKNOWN if value is None else f"{value * scale:.{decimals}f}{unit}"


def _bytes(row: dict) -> str:
    key = "arithmetic_bytes_per_step" if row["wire_bytes_per_step"] is None else \
        "wire_bytes_per_step"
    return _number(row, key, 1e-6, 2)


def _difference(row: dict) -> str:
    if row["accuracy_difference"] is None:
        return _UNKNOWN
    task = task_of(row)
    text = f"{task.difference(row):+.2f}" + (" %" if task.relative else "")
    if row["accuracy_interval"] is not None:
        text += f" ±{task.interval(row):.2f}"
    return text


def _to_same_loss(row: dict) -> str:
    if row["seconds_to_same_loss"] is None:
        return "not reached"
    return f"{row['seconds_to_same_loss']:.1f} s"


_NAME = Column(("", "compressor"), lambda row: row["compressor"])
_BYTES = Column(("MB sent", "a step"), _bytes)
_ROW_BYTES = Column(("of it", "rows"), lambda row: _number(row, "row_bytes_per_step", 1e-6, 2))
_TIMES = (
    Column(("ms", "a step"), lambda row: _number(row, "step_seconds", 1e3, 0)),
    Column(("speed-up", "a step"), lambda row: _number(row, "speedup", 1, 2, "x")),
    Column(("time to", "same loss"), _to_same_loss),
    Column(("of", "plain's"), lambda row: _number(row, "time_to_same_loss_ratio", 100, 0, " %")),
)


def columns(rows: list[dict]) -> tuple[Column, ...]:
    """Those of the rows' task."""
    task = task_of(rows[0] if rows else {})
    score = Column(("test", task.score), lambda row: task.text(row["accuracy"]))
    row_bytes = (_ROW_BYTES,) if task.embedding else ()
    return (_NAME, score, Column(("against", "plain"), _difference), _BYTES, *row_bytes, *_TIMES)


def cells(rows: list[dict]) -> list[list[str]]:
    """The text of every cell, row by row."""
    return [[column.text(row) for column in columns(rows)] for row in rows]


def render(rows: list[dict]) -> str:
    """The table as lines of at most 100 characters; long names are shortened in the middle."""
    body = [[shortened(line[0], _NAME_WIDTH), *line[1:]] for line in cells(rows)]
    heads = columns(rows)
    lines = [[column.heading[part] for column in heads] for part in range(2)] + body
    widths = [max(len(line[index]) for line in lines) for index in range(len(heads))]
    text = ["  ".join([line[0].ljust(widths[0]),
                       *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]).rstrip()
            for line in lines]
    return "\n".join([*text[:2], "-" * (sum(widths) + 2 * (len(widths) - 1)), *text[2:]])


def shortened(text: str, width: int) -> str:
    """At most `width` characters, by leaving out some in the middle."""
    tail = (width - 1) // 2
    return text if len(text) <= width else text[:width - 1 - tail] + "…" + text[-tail:]
