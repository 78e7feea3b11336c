"""The table at the end of a job, for a terminal of 100 columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

WIDTH = 100
_NAME_WIDTH = 26
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
    text = f"{100 * row['accuracy_difference']:+.2f}"
    if row["accuracy_interval"] is not None:
        text += f" ±{100 * row['accuracy_interval']:.2f}"
    return text


def _to_same_loss(row: dict) -> str:
    if row["seconds_to_same_loss"] is None:
        return "not reached"
    return f"{row['seconds_to_same_loss']:.1f} s"


COLUMNS = (
    Column(("", "compressor"), lambda row: row["compressor"]),
    Column(("test", "accuracy"), lambda row: _number(row, "accuracy", 100, 2, " %")),
    Column(("against", "plain"), _difference),
    Column(("MB sent", "a step"), _bytes),
    Column(("ms", "a step"), lambda row: _number(row, "step_seconds", 1e3, 0)),
    Column(("speed-up", "a step"), lambda row: _number(row, "speedup", 1, 2, "x")),
    Column(("time to", "same loss"), _to_same_loss),
    Column(("of", "plain's"), lambda row: _number(row, "time_to_same_loss_ratio", 100, 0, " %")),
)


def cells(rows: list[dict]) -> list[list[str]]:
    """The text of every cell, row by row."""
    return [[column.text(row) for column in COLUMNS] for row in rows]


def render(rows: list[dict]) -> str:
    """The table as lines of at most 100 characters; long names are shortened in the middle."""
    body = [[_shortened(line[0]), *line[1:]] for line in cells(rows)]
    lines = [[column.heading[part] for column in COLUMNS] for part in range(2)] + body
    widths = [max(len(line[index]) for line in lines) for index in range(len(COLUMNS))]
    text = ["  ".join([line[0].ljust(widths[0]),
                       *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]).rstrip()
            for line in lines]
    return "\n".join([*text[:2], "-" * (sum(widths) + 2 * (len(widths) - 1)), *text[2:]])


def _shortened(name: str) -> str:
    if len(name) <= _NAME_WIDTH:
        return name
    tail = (_NAME_WIDTH - 1) // 2
    return name[:_NAME_WIDTH - 1 - tail] + "…" + name[-tail:]
