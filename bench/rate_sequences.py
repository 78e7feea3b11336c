"""Whether `casq:rate=` holds its rate on the gradients of trainings, step after step.

    scripts/cmake_build.sh release
    .venv/bin/python -m bench.rate_sequences [--steps 60] [--workers 4] [--rates 0.05,0.1,0.5,1,2] [--seeds 0] [--json]

Records every worker's gradients of the last `--steps` steps of plain data-parallel trainings, of the CNN of
`bench.gradient_error` (0.31 M parameters) and of the language task's LSTM without its embedding (1.65 M), and lets
`thinwire exchange` average them, with feedback. Printed for each rate, the first ten steps apart: bits an entry of ten steps
together, as multiples of the rate, the least and the most, and how many are within 2 %; how many steps are within a tenth of the rate; the most of any
step, the first ten among them; and rounds a step. With reduce=scatter bits are those of the first encoding.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bench.gradient_error import build_network, layout_of, training_gradients
from bench.rate_error import language_gradients

PROGRAM = Path("build/thinwire")
BEFORE = 40  # steps of training that are not recorded
TEN = 10


def cnn_gradients(seed: int, steps: int, workers: int) -> tuple[Iterator[list[np.ndarray]], list[dict]]:
    torch.manual_seed(seed)
    network = build_network()
    return training_gradients(seed, steps, workers, 32, network), layout_of(network)


def record(name: str, seed: int, steps: int, workers: int, folder: Path) -> tuple[Path, Path]:
    """The last steps' gradients, (steps, workers, n), and their layout."""
    gradients, layout = {"cnn": cnn_gradients, "lstm": language_gradients}[name](seed, BEFORE + steps, workers)
    recorded = np.stack([np.stack(step) for i, step in enumerate(gradients) if i >= BEFORE])
    np.save(folder / f"{name}.npy", recorded)
    (folder / f"{name}.json").write_text(json.dumps(layout))
    return folder / f"{name}.npy", folder / f"{name}.json"


def row_of(name: str, seed: int, spec: str, rate: float, gradients: Path, layout: Path) -> dict:
    command = [PROGRAM, "exchange", "--compressor", spec, "--input", gradients, "--layout", layout, "--json"]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    bits = np.array([step["bits_per_element"] for step in figures["per_step"]]) / rate
    later = bits[TEN:]
    of_ten = later[: len(later) // TEN * TEN].reshape(-1, TEN).mean(1)
    return {
        "gradients": name, "seed": seed, "compressor": spec,
        "ten_least": float(of_ten.min()), "ten_most": float(of_ten.max()),
        "tens_within_2_percent": float((np.abs(of_ten - 1) <= 0.02).mean()),
        "within_a_tenth": float((np.abs(later - 1) <= 0.1).mean()), "most": float(bits.max()),
        "rounds": figures["rounds"], "error_of_worker": figures["nmse_worker"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="that are recorded, 20 or more")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rates", default="0.05,0.1,0.5,1,2", help="bits an entry, comma-separated")
    parser.add_argument("--gradients", default="cnn,lstm", help="whose, comma-separated")
    parser.add_argument("--seeds", default="0", help="of the trainings, comma-separated")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.steps < 2 * TEN:
        parser.error(f"--steps {arguments.steps}: at least {2 * TEN}, of which the first ten are apart")
    if not PROGRAM.exists():
        parser.error(f"{PROGRAM} is not there: build it by scripts/cmake_build.sh release")
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, seed in itertools.product(arguments.gradients.split(","), map(int, arguments.seeds.split(","))):
            recording = record(name, seed, arguments.steps, arguments.workers, Path(folder))
            for rate in arguments.rates.split(","):
                for reduce in ("gather", "scatter"):
                    rows.append(row_of(name, seed, f"casq:rate={rate},reduce={reduce}", float(rate), *recording))
    if arguments.json:
        print(json.dumps({"steps": arguments.steps, "workers": arguments.workers, "rows": rows}, indent=1))
        return
    print("gradients  seed  compressor                     of ten steps  within 2 %  a step's 10 %  most  rounds")
    print("----------------------------------------------------------------------------------------------------")
    for row in rows:
        print(f"{row['gradients']:<9}  {row['seed']:>4}  {row['compressor']:<29}  {row['ten_least']:5.3f}..{row['ten_most']:5.3f}"
              f"  {100 * row['tens_within_2_percent']:8.0f} %  {100 * row['within_a_tenth']:11.0f} %  {row['most']:4.2f}  {row['rounds']:6.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
