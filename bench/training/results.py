"""What a job found: the runs as they come, their summary, and out/results.json.

README.md beside this file documents every key.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from bench.training import comparison, tasks
from bench.training.launcher import cores
from bench.training.settings import Settings

FORMAT = 1
_PACKAGES = ("torch", "numpy", "thinwire", "matplotlib")


@dataclass
class Results:
    """Everything that is known so far; `save` may be called at any time."""

    settings: Settings
    command: list[str]
    link: dict
    runs: list[dict] = field(default_factory=list)
    started: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat("T", "seconds"))
    seconds: float = 0.0
    complete: bool = False

    def finished(self) -> list[tuple[int, str]]:
        return [(run["seed"], run["compressor"]) for run in self.runs]

    def as_dict(self) -> dict:
        return {"format": FORMAT, "complete": self.complete, "command": self.command,
                "started": self.started, "seconds": round(self.seconds, 1),
                "versions": versions(), "machine": machine(), "settings": asdict(self.settings),
                "network": self.link, "summary": summarise(self.runs), "runs": self.runs}

    def save(self, path: Path) -> None:
        """Writes the file as a whole or not at all; what is not finite becomes null."""
        unfinished = path.with_suffix(".json.tmp")
        unfinished.write_text(json.dumps(_finite(self.as_dict()), allow_nan=False) + "\n")
        unfinished.replace(path)


def earlier_runs(path: Path, settings: Settings) -> list[dict]:
    """The runs of an earlier job that `settings` asks for too; ValueError where it differed."""
    if not path.exists():
        return []
    earlier = json.loads(path.read_text())
    now = asdict(settings)
    for key, value in earlier["settings"].items():
        if key not in ("compressors", "seeds", "timeout") and value != now.get(key):
            raise ValueError(f"cannot resume {path}: it has {key} {value}, not {now.get(key)}")
    return [run for run in earlier["runs"]
            if run["seed"] in settings.seeds and run["compressor"] in settings.compressors]


def summarise(runs: list[dict]) -> list[dict]:
    """One row a compressor, over its seeds, in the order in which they were first trained."""
    if not runs:
        return []
    reference = "plain" if any(run["compressor"] == "plain" for run in runs) else None
    same_loss = _seconds_to_same_loss(runs)
    rows = [_row(name, [run for run in runs if run["compressor"] == name], same_loss)
            for name in dict.fromkeys(run["compressor"] for run in runs)]
    plain = next((row for row in rows if row["compressor"] == reference), None)
    for row in rows:
        _compare(row, plain)
    return rows


def _row(name: str, runs: list[dict], same_loss: dict) -> dict:
    def mean(values: list) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if len(known) == len(values) else None

    steady = [_steady(run) for run in runs]
    step = mean([each["step"] for each in steady])
    measured = [r["hook_seconds"] if r["hook_seconds"] is not None else r["compress_seconds"]
                for r in runs]
    compute = min(mean([r["compute_seconds"] for r in runs]), step)
    compress = mean(measured)
    compress = None if compress is None else min(compress, step - compute)
    times = [same_loss[run["seed"], name] for run in runs]
    return {
        "compressor": name, "task": runs[0].get("task", tasks.IMAGES), "seeds": [run["seed"] for run in runs],
        "accuracies": [run["accuracies"][-1][1] for run in runs],
        "accuracy": mean([run["accuracies"][-1][1] for run in runs]),
        "final_loss": mean([comparison.smoothed(run["losses"])[-1] for run in runs]),
        "step_seconds": step,
        "step_seconds_mean": mean([statistics.fmean(run["step_seconds"]) for run in runs]),
        "compute_seconds": compute, "compress_seconds": compress,
        "wire_seconds": step - compute - (compress or 0.0),
        "wire_bytes_per_step": mean([each["bytes"] for each in steady]),
        "arithmetic_bytes_per_step": mean([r["arithmetic_bytes_per_step"] for r in runs]),
        "row_bytes_per_step": mean([r.get("row_bytes_per_step") for r in runs]),
        "compression_error": mean([run["compression_error"] for run in runs]),
        "seconds_to_same_loss": mean(times), "training_seconds":
            mean([sum(run["step_seconds"]) for run in runs]),
    }


def _compare(row: dict, plain: dict | None) -> None:
    row["speedup"] = row["time_to_same_loss_ratio"] = None
    row["accuracy_difference"] = row["accuracy_interval"] = None
    if plain is None:
        return
    row["speedup"] = plain["step_seconds"] / row["step_seconds"]
    if row["seconds_to_same_loss"] and plain["seconds_to_same_loss"]:
        row["time_to_same_loss_ratio"] = (
            row["seconds_to_same_loss"] / plain["seconds_to_same_loss"])
    common = [seed for seed in row["seeds"] if seed in plain["seeds"]]
    if row is not plain and common:
        interval = comparison.paired_interval(
            [row["accuracies"][row["seeds"].index(seed)] for seed in common],
            [plain["accuracies"][plain["seeds"].index(seed)] for seed in common])
        row["accuracy_difference"], row["accuracy_interval"] = interval.mean, interval.half_width


def _steady(run: dict) -> dict:
    """Medians a step, after the compressor's warm-up."""
    first = run["warm_up_steps"]
    sent = run["step_bytes"] and statistics.median(run["step_bytes"][first:])
    return {"step": statistics.median(run["step_seconds"][first:]), "bytes": sent}


def _seconds_to_same_loss(runs: list[dict]) -> dict[tuple[int, str], float | None]:
    """Seed by seed, since the level depends on the seed's batches."""
    result = {}
    for seed in dict.fromkeys(run["seed"] for run in runs):
        group = [run for run in runs if run["seed"] == seed]
        final = {run["compressor"]: comparison.smoothed(run["losses"])[-1] for run in group}
        reference = final.get("plain", min(final.values()))
        level = comparison.common_loss(list(final.values()), reference)
        for run in group:
            result[seed, run["compressor"]] = comparison.seconds_to_loss(
                run["losses"], run["step_seconds"], level)
    return result


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def machine() -> dict:
    """Cores that the job may use, the processor's name, memory in GiB, and the kernel."""
    information = Path("/proc/cpuinfo").read_text()
    names = [line.split(":", 1)[1].strip() for line in information.splitlines()
             if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cores": cores(), "cpu": names[0] if names else platform.machine(),
            "memory_gib": round(memory, 1), "kernel": platform.release()}


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
