"""CASQ beside other quantizers at equal bits, where tables pay, and predicted against measured error.

    .venv/bin/python -m bench.casq_evidence [--seeds 3] [--json docs/measurements/casq.json] [--figure docs/casq_error.svg]

On gradients of a small CNN (0.31 M parameters, step 200, mean over trainings) and of the main job's network (4.3 M, step 100,
one training), four workers, without feedback, all bits counted. The rivals are NumPy (bench/rivals.py). CASQ's thresholds
were trained on the gradients themselves, as k-means is.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
import torch

import thinwire
from bench.casq_prediction import decode, predicted_error
from bench.gradient_error import record_gradients, reference_error
from bench.rivals import qsgd, rotation
from bench.training.model import make_model

PUBLISHED = "signs=apart,tail=0.05,assign=hash,allocate=entropy-centre-density"
SPECS = [
    *(f"bits={bits}" for bits in (1, 2, 3, 4)),
    *(f"bits={bits},scope=block,precision=bf16" for bits in (1, 2, 3, 4)),
    *(f"budget={budget},precision=bf16" for budget in (2.04, 3.04)),
    *(f"budget={budget},scope=block,precision=bf16" for budget in (2.04, 3.04)),
    "bits=2,signs=apart",
    "bits=2,signs=apart,tail=0.05",
    *(f"bits=2,{PUBLISHED},table={table}" for table in (0.02, 0.09)),
    *(f"bits=3,{PUBLISHED},table={table}" for table in (0.02, 0.09)),
]
TABLES = [
    f"bits={bits},table={table},assign={assign},precision={precision}"
    for bits in (1, 2, 3)
    for table in (0.005, 0.02, 0.1)
    for assign, precision in (("rank", "bf16"), ("hash", "bf16"))
]
Gradients = list[np.ndarray]


def casq(gradients: Gradients, layout: list[dict], spec: str) -> dict:
    _, figures = thinwire.exchange(gradients, f"casq:feedback=off,{spec}", layout=layout)
    return {"name": f"casq:{spec}", "bits": figures["bits_per_element"], "error": figures["nmse_worker"],
            "error_of_mean": figures["nmse_mean"]}  # fmt: skip


def rival(name: str, gradients: Gradients, quantize) -> dict:
    """quantize(gradient, random) returns what is decoded and the bits."""
    random = np.random.default_rng(7)
    decoded, bits = zip(*(quantize(gradient.astype(np.float64), random) for gradient in gradients))
    exact, mean = np.mean(gradients, axis=0, dtype=np.float64), np.mean(decoded, axis=0)
    errors = [((d - g) ** 2).sum() / (g.astype(np.float64) ** 2).sum() for d, g in zip(decoded, gradients)]
    return {"name": name, "bits": statistics.mean(bits), "error": statistics.mean(errors),
            "error_of_mean": float(((mean - exact) ** 2).sum() / (exact**2).sum())}  # fmt: skip


def compare(gradients: Gradients, layout: list[dict]) -> list[dict]:
    rows = [casq(gradients, layout, spec) for spec in SPECS]
    for bits in (2, 3, 4):
        rows.append(rival(f"QSGD, {bits} bits, buckets of 512", gradients, lambda g, r: qsgd(g, bits, r)))
    for bits in (1, 2, 3, 4):
        rows.append(rival(f"rotation (EDEN), {bits} bits", gradients, lambda g, r: rotation(g, bits, r, unbiased=True)))
    for bits in (1, 2, 3, 4):
        rows.append(rival(f"rotation, {bits} bits, least error", gradients, lambda g, r: rotation(g, bits, r, unbiased=False)))
    for bits in (2, 3, 4):
        error = reference_error(gradients, layout, bits)
        rows.append({"name": f"k-means a layer, {2**bits} levels", "bits": float(bits), "error": error, "error_of_mean": None})
    return rows


def tables_against_codes(gradients: Gradients, layout: list[dict]) -> list[dict]:
    """Each table beside the same bits spent on codes: `budget` does that."""
    rows = []
    for spec in TABLES:
        table = casq(gradients, layout, spec)
        codes = casq(gradients, layout, f"budget={table['bits']:.4f},precision=bf16")
        rows.append({**table, "codes_bits": codes["bits"], "codes_error": codes["error"]})
    return rows


def predictions(real: np.ndarray) -> list[dict]:
    random = np.random.default_rng(11)
    samples = {"Gaussian": random.normal(size=200_000), "Laplace": random.laplace(size=200_000),
               "Student-t, 3": random.standard_t(3, size=200_000), "CNN": real}  # fmt: skip
    rows = []
    for name, values in samples.items():
        values = values.astype(np.float32)
        for bits in (1, 2, 3):
            for table in (0.01, 0.03, 0.1):
                for assign in ("rank", "hash"):
                    predicted = predicted_error(values, bits, table, assign, in_order=name == "CNN")
                    _, figures = decode(values, f"bits={bits},table={table},assign={assign}")
                    rows.append({"values": name, "bits": bits, "table": table, "assign": assign, "predicted": predicted,
                                 "measured": figures["nmse_worker"]})  # fmt: skip
    return rows


def mean_rows(repeated: list[list[dict]]) -> list[dict]:
    def mean(values):
        return statistics.mean(values) if isinstance(values[0], float) else values[0]

    return [{key: mean([row[key] for row in same]) for key in same[0]} for same in zip(*repeated)]


def draw(rows: list[dict], path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "thinwire"
    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    axes = figure.subplots()
    limits = [min(row["predicted"] for row in rows) / 1.3, max(row["predicted"] for row in rows) * 1.3]
    axes.fill_between(limits, [0.9 * x for x in limits], [1.1 * x for x in limits], color="#ddd", label="within 10 %")
    names = list(dict.fromkeys(row["values"] for row in rows))
    for name, colour in zip(names, ("#3b6ea5", "#c2452d", "#2f6f4f", "#8a5ca8")):
        for assign, marker in (("rank", "o"), ("hash", "x")):
            some = [row for row in rows if row["values"] == name and row["assign"] == assign]
            axes.scatter([row["predicted"] for row in some], [row["measured"] for row in some], color=colour,
                         marker=marker, s=22, label=f"{name}, {assign}")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, xlabel="predicted error", ylabel="measured error")
    for axis in (axes.xaxis, axes.yaxis):  # labels of a logarithmic axis would lie upon each other
        axis.set_ticks([tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1) if limits[0] <= tick <= limits[1]])
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def print_rows(title: str, rows: list[dict]) -> None:
    print(f"\n{title}\n{'':<74} {'bits':>6} {'error':>8} {'of mean':>8}")
    for row in rows:
        of_mean = "-" if row["error_of_mean"] is None else f"{row['error_of_mean']:.3g}"
        print(f"{row['name']:<74} {row['bits']:>6.3f} {row['error']:>8.3g} {of_mean:>8}")


def print_tables(title: str, rows: list[dict]) -> None:
    print(f"\n{title}: tables, and the same bits as codes\n{'':<52} {'bits':>6} {'error':>8}   {'bits':>6} {'error':>8}")
    for row in rows:
        print(f"{row['name']:<52} {row['bits']:>6.3f} {row['error']:>8.3g}   {row['codes_bits']:>6.3f} {row['codes_error']:>8.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of the CNN to average over")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--figure", type=Path, help="draw predicted against measured error here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recorded = [record_gradients(seed, 200, 4, 32) for seed in range(arguments.seeds)]
    main_job = record_gradients(0, 100, 4, 32, lambda: make_model(0))
    results = {
        "cnn": mean_rows([compare(*one) for one in recorded]),
        "main_job": compare(*main_job),
        "cnn_tables": mean_rows([tables_against_codes(*one) for one in recorded]),
        "main_job_tables": tables_against_codes(*main_job),
        "predictions": predictions(recorded[0][0][0]),
    }
    print_rows("CNN", results["cnn"])
    print_rows("the main job's network", results["main_job"])
    print_tables("CNN", results["cnn_tables"])
    print_tables("the main job's network", results["main_job_tables"])
    worst = max(results["predictions"], key=lambda row: abs(row["measured"] / row["predicted"] - 1))
    print(f"\npredictions: {len(results['predictions'])}, the worst {worst}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"seeds": arguments.seeds, **results}, indent=1) + "\n")
    if arguments.figure:
        draw(results["predictions"], arguments.figure)


if __name__ == "__main__":
    main()
