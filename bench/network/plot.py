"""A picture of the rows: how many times as fast as the plain sum, by link and compressor."""

from __future__ import annotations

from pathlib import Path

from bench import speedups


def draw(rows: list[dict], target: Path) -> None:
    shown = [row for row in rows if row["traffic_bytes"]]  # not the backward pass alone
    speedups.draw({(f"{row['path']}, {row['elements'] / 1e6:g} M float32", row["link"], row["compressor"]): row["speedup"] or 0 for row in shown}, target)
