"""CASQ on gradients that its clusters were not trained on, beside k-means with levels as old, and with fresh ones.

    .venv/bin/python -m bench.casq_unseen [--seeds 3] [--json docs/measurements/casq_unseen.json]

The gradients of bench.casq_evidence (a small CNN from step 200 on, the main job's network from step 100 on, four workers) and
those of the steps that follow. Clusters are trained on the first step alone (`retrain` is longer than the recording); errors
are |g - g'|^2 / |g|^2 of a worker, without feedback, means over the 1st, 5th and 20th step after it. k-means (NumPy, double
precision) has one set of levels for each parameter and worker, whose bits are not counted: as old, levels of the first step;
fresh, of each step itself, which no compressor could know without sending them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.casq_evidence import mean_rows
from bench.gradient_error import build_network, kmeans, layout_of, training_gradients
from bench.rivals import rotation
from bench.training.model import make_model

BITS = (1, 2, 3, 4)
WORKERS, BATCH = 4, 32
EVALUATED = (1, 5, 20)  # steps after the one that clusters are trained on


def record(seed: int, warm_up: int, network: nn.Module) -> np.ndarray:
    """(steps, workers, elements)"""
    steps = training_gradients(seed, warm_up + EVALUATED[-1] + 1, WORKERS, BATCH, network)
    return np.array([gradients for step, gradients in enumerate(steps) if step >= warm_up])


def casq_errors(folder: Path, spec: str) -> list[float]:
    output = subprocess.run(
        ["build/thinwire", "exchange", "--compressor", spec, "--input", folder / "g.npy", "--layout", folder / "layout.json",
         "--json"], check=True, capture_output=True, text=True).stdout  # fmt: skip
    return [step["nmse_worker"] for step in json.loads(output)["per_step"]]


def kmeans_errors(gradients: np.ndarray, layout: list[dict], levels: int) -> tuple[float, float]:
    """Of the evaluated steps: with levels of the first step, and with each step's own."""
    ends = [entry["offset"] for entry in layout[1:]]
    old, fresh = [], []
    for steps in gradients.astype(np.float64).swapaxes(0, 1):
        first, *following = (np.split(steps[step], ends) for step in (0, *EVALUATED))
        centres = [np.sort(kmeans(part, levels)[1]) for part in first]
        for parts in following:
            energy = sum((part**2).sum() for part in parts)
            nearest = (c[np.searchsorted((c[1:] + c[:-1]) / 2, part)] for c, part in zip(centres, parts))
            old.append(sum(((part - decoded) ** 2).sum() for part, decoded in zip(parts, nearest)) / energy)
            fresh.append(sum(kmeans(part, levels)[0] for part in parts) / energy)
    return statistics.mean(old), statistics.mean(fresh)


def rows_of(gradients: np.ndarray, layout: list[dict]) -> list[dict]:
    rows, random = [], np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "g.npy", gradients)
        (folder / "layout.json").write_text(json.dumps(layout))
        for bits in BITS:
            plain, block = (
                casq_errors(folder, f"casq:bits={bits},retrain=1000000,feedback=off{more}")
                for more in ("", ",scope=block,precision=bf16")
            )
            old, fresh = kmeans_errors(gradients, layout, 2**bits)
            rotated = [
                ((rotation(g, bits, random, unbiased=True)[0] - g) ** 2).sum() / (g**2).sum()
                for g in gradients[list(EVALUATED)].reshape(-1, gradients.shape[2]).astype(np.float64)
            ]
            unseen, in_blocks = (statistics.mean(errors[step] for step in EVALUATED) for errors in (plain, block))
            rows.append({"bits": bits, "casq_seen": plain[0], "casq": unseen, "casq_block": in_blocks, "kmeans_old": old,
                         "kmeans_fresh": fresh, "rotation": statistics.mean(rotated)})  # fmt: skip
    return rows


def print_rows(title: str, rows: list[dict]) -> None:
    print(f"\n{title}\nbits  casq, seen   unseen  blocks | k-means as old    fresh | rotation (EDEN)")
    for row in rows:
        print(f"{row['bits']:>4}  {row['casq_seen']:>10.3g} {row['casq']:>8.3g} {row['casq_block']:>7.3g}"
              f" | {row['kmeans_old']:>14.3g} {row['kmeans_fresh']:>8.3g} | {row['rotation']:>15.3g}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of the CNN to average over")
    parser.add_argument("--json", type=Path, help="write all figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repeated = []
    for seed in range(arguments.seeds):
        torch.manual_seed(seed)
        network = build_network()
        repeated.append(rows_of(record(seed, 200, network), layout_of(network)))
    results = {"cnn": mean_rows(repeated)}
    print_rows("CNN", results["cnn"])
    network = make_model(0)
    results["main_job"] = rows_of(record(0, 100, network), layout_of(network))
    print_rows("the main job's network", results["main_job"])
    if arguments.json:
        results = {"seeds": arguments.seeds, "evaluated": EVALUATED, **results}
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
