"""Every compressor in training: the table that says what each costs and what it saves.

Trains the image task (paired seeds) and the language model (one seed) with every row of the registry at its usual setting, without a link,
and ten steps of the image task on each of two links for the times. Resumes where it stopped: trainings that OUT holds are kept. Writes
OUT/table.json, OUT/table.md, and for each part the results and the page that ./run writes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import thinwire
from bench.training import tasks
from bench.training.table import shortened

# Where a row's defaults are not what it is trained with, or PyTorch has a hook of its name. Signs: a step of .0005, at the job's learning rate.
_USUAL = {
    "bf16": "thinwire:bf16",
    "fp16": "thinwire:fp16",
    "powersgd": "thinwire:powersgd",
    "signsgd": "signsgd:scale=0.001",
    "signum": "signum:scale=0.01",
}
_FURTHER = (
    "casq:rate=1",
    "casq:rate=0.5",
    "gradiveq:refresh=every,ratio=4,feedback=on/qsgd:bits=6,reduce=sum",
)
_PYTORCH = ("powersgd",)  # its hook
_REFERENCE = "plain"
_TIMED_STEPS = 13  # three of them are warm-up
_SPEC_WIDTH = 24
_EXAMPLES_A_STEP = 4 * tasks.TASKS[tasks.IMAGES].batch


@dataclass(frozen=True)
class Part:
    """One call of ./run, and what its summary tells in the table."""

    name: str
    arguments: tuple[str, ...]


def parts(seeds: int, epochs: float, language_epochs: float) -> tuple[Part, ...]:
    timed = ("--train-limit", str(_TIMED_STEPS * _EXAMPLES_A_STEP), "--test-limit", "128", "--epochs", "1", "--evaluations", "1")
    return (
        Part("images", ("--link", "none", "--seeds", str(seeds), "--epochs", f"{epochs:g}")),
        Part("language", ("--task", tasks.LANGUAGE, "--link", "none", "--epochs", f"{language_epochs:g}")),
        Part("1gbit", ("--link", "1gbit", *timed)),
        Part("100mbit", ("--link", "100mbit", *timed)),
    )


def specs(only: Sequence[str]) -> list[str]:
    """What is compared, plain first; only: of these rows alone, if any are named."""
    rows = [row["name"] for row in thinwire.compressors() if row["name"] != "none"]
    usual = [_USUAL.get(name, name) for name in rows]
    chosen = [*usual, *_FURTHER, *_PYTORCH]
    return [_REFERENCE, *(spec for spec in sorted(chosen, key=_row_of) if not only or _row_of(spec) in only)]


def in_language_model(spec: str) -> str:
    """Rows that are not used need not be sent by anybody: the embedding goes by S2, losslessly, or by `spec` if that is for rows, and then all else
    as it is."""
    if spec == _REFERENCE or spec in _PYTORCH:
        return spec
    serves_rows = any(row["name"] == _row_of(spec) and row["family"] == "rows" for row in thinwire.compressors())
    return f"{spec}+none" if serves_rows else f"s2+{spec.removeprefix('thinwire:')}"


def _row_of(spec: str) -> str:
    return spec.removeprefix("thinwire:").partition(":")[0].partition("/")[0]


def run(part: Part, wanted: list[str], out: Path) -> None:
    command = [sys.executable, "-m", "bench.training", *part.arguments, "--compressors", ";".join(wanted), "--out", str(out / part.name), "--resume"]
    print(f"\n=== {part.name}: {len(wanted)} ways", flush=True)
    subprocess.run(command, check=True)


def table(out: Path, chosen: list[str]) -> list[dict]:
    """A row for each spec, with what is known of it so far; differences to plain are per cent of its perplexity, and points of accuracy."""
    summaries = {}
    for name in ("images", "language", "1gbit", "100mbit"):
        path = out / name / "results.json"
        summaries[name] = {row["compressor"]: row for row in json.loads(path.read_text())["summary"]} if path.exists() else {}
    rows = []
    for spec in chosen:
        image, language = summaries["images"].get(spec), summaries["language"].get(in_language_model(spec))
        plain = summaries["language"].get(_REFERENCE)
        rows.append({
            "spec": spec,
            "seeds": len(image["seeds"]) if image else 0,
            "accuracy": image and image["accuracy"],
            "accuracy_difference": image and image["accuracy_difference"],
            "accuracy_interval": image and image["accuracy_interval"],
            "image_bytes": image and image["arithmetic_bytes_per_step"],
            "perplexity": language and language["accuracy"],
            "perplexity_difference": language["accuracy"] / plain["accuracy"] - 1 if language and plain and language["accuracy"] else None,
            "language_bytes": language and language["arithmetic_bytes_per_step"],
            "language_row_bytes": language and language["row_bytes_per_step"],
            **{f"{link}_seconds": (summaries[link].get(spec) or {}).get("step_seconds") for link in ("1gbit", "100mbit")},
        })
    return rows


def _text(value: float | None, scale: float = 1, decimals: int = 2, sign: str = "") -> str:
    return "-" if value is None else f"{value * scale:{sign}.{decimals}f}"


def _cells(row: dict) -> list[str]:
    difference = _text(row["accuracy_difference"], 100, 2, "+")
    if row["accuracy_interval"] is not None:
        difference += f" ±{100 * row['accuracy_interval']:.2f}"
    return [
        row["spec"], _text(row["accuracy"], 100), difference, _text(row["image_bytes"], 1e-6),
        _text(row["perplexity"], 1, 1), _text(row["perplexity_difference"], 100, 1, "+"), _text(row["language_bytes"], 1e-6),
        _text(row["1gbit_seconds"], 1e3, 0), _text(row["100mbit_seconds"], 1e3, 0),
    ]  # fmt: skip


_HEADINGS = ("spec", "accuracy %", "to plain", "MB a step", "perplexity", "to plain %", "MB a step", "ms, 1 Gb/s", "ms, 100 Mb/s")


def markdown(rows: list[dict]) -> str:
    lines = [_HEADINGS, ["---"] * len(_HEADINGS), *([f"`{cells[0]}`", *cells[1:]] for cells in map(_cells, rows))]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def text(rows: list[dict]) -> str:
    """For a terminal of 100 columns."""
    headings = [["", "images", "", "", "language", "", "", "images", ""], ["", "accuracy", "against", "MB", "perple-", "to", "MB", "ms at", "ms at"], ["spec", "%", "plain", "a step", "xity", "plain %", "a step", "1 Gb/s", "100 Mb/s"]]
    body = [[shortened(cells[0], _SPEC_WIDTH), *cells[1:]] for cells in map(_cells, rows)]
    widths = [max(len(line[column]) for line in headings + body) for column in range(len(_HEADINGS))]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]).rstrip()
                     for line in headings + body)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.training_table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/training_table"), metavar="DIR", help="folder (default out/training_table)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="of the image task (3)")
    parser.add_argument("--epochs", type=float, default=0.5, metavar="X", help="of the image task (0.5)")
    parser.add_argument("--language-epochs", type=float, default=0.25, metavar="X", help="of the language model (0.25)")
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW", help="these rows of the registry alone, beside plain")
    parser.add_argument("--parts", nargs="+", metavar="PART", help="of images, language, 1gbit and 100mbit (default: all)")
    options = parser.parse_args()
    every_part = parts(options.seeds, options.epochs, options.language_epochs)
    names = options.parts or [part.name for part in every_part]
    if unknown := set(names) - {part.name for part in every_part}:
        parser.error(f"--parts {' '.join(sorted(unknown))}: there are {', '.join(part.name for part in every_part)}")
    if unknown := set(options.only) - {row["name"] for row in thinwire.compressors()}:
        parser.error(f"--only {' '.join(sorted(unknown))}: no such compressor; `build/thinwire compressors` lists them")
    chosen = specs(options.only)
    options.out.mkdir(parents=True, exist_ok=True)
    for part in every_part:
        if part.name in names:
            try:
                run(part, [in_language_model(spec) for spec in chosen] if part.name == "language" else chosen, options.out)
            except subprocess.CalledProcessError as error:
                print(f"{part.name} ended with status {error.returncode}; the same command goes on from there", file=sys.stderr)
                return 1
            except KeyboardInterrupt:
                return 130
        rows = table(options.out, chosen)
        (options.out / "table.json").write_text(json.dumps({"command": sys.argv[1:], "rows": rows}, indent=1) + "\n")
        (options.out / "table.md").write_text(markdown(rows))
    print("\n" + text(rows) + f"\n\n{options.out / 'table.json'} and {options.out / 'table.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
