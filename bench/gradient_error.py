"""Compression error on real gradients, beside an independent k-means.

    .venv/bin/python -m bench.gradient_error [--steps 200] [--workers 4] [--batch 32] [--seeds 3] [--json]

Trains a small CNN (0.31 M parameters) on Fashion-MNIST in one process, takes every worker's gradient of the step after
`--steps`, and compresses it without feedback. Printed for each compressor: true bits an entry (everything that is sent,
clusters' training apart), error of a worker's own encoding, |g - g'|^2 / |g|^2, and of the mean. The rows `k-means` are an
independent NumPy reference (Lloyd's algorithm in double precision, one set of 2^b levels for each parameter and worker;
their bits do not count the levels).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

import thinwire
from bench.training.data import Images, Order, load

COMPRESSORS = ["casq:bits=1", "casq:bits=2", "casq:bits=2,signs=apart", "casq:bits=3", "casq:bits=4", "bf16"]
REFERENCE_BITS = [2, 3]


def build_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 92), nn.ReLU(), nn.Linear(92, 10),
    )  # fmt: skip


def training_gradients(
    seed: int, steps: int, workers: int, batch: int, network: nn.Module
) -> Iterator[list[np.ndarray]]:
    """Each worker's flat float32 gradient of every step of plain data-parallel training."""
    images = load("train")
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    order = Order(len(images), workers, batch, seed)
    for indices in zip(*(order.batches(rank, steps) for rank in range(workers))):
        gradients = [_gradient(network, images, shard) for shard in indices]
        yield [gradient.numpy() for gradient in gradients]
        _set_gradient(network, torch.stack(gradients).mean(0))
        optimiser.step()


def record_gradients(
    seed: int, steps: int, workers: int, batch: int, build: Callable[[], nn.Module] = build_network
) -> tuple[list[np.ndarray], list[dict]]:
    """Each worker's gradient after `steps` steps, and the layout."""
    torch.manual_seed(seed)
    network = build()
    *_, gradients = training_gradients(seed, steps + 1, workers, batch, network)
    return gradients, layout_of(network)


def _gradient(network: nn.Module, images: Images, indices: torch.Tensor) -> torch.Tensor:
    network.zero_grad()
    pixels, labels = images.batch(indices)
    nn.functional.cross_entropy(network(pixels), labels).backward()
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])


def _set_gradient(network: nn.Module, gradient: torch.Tensor) -> None:
    parameters = list(network.parameters())
    for parameter, part in zip(parameters, gradient.split([p.numel() for p in parameters])):
        parameter.grad = part.view_as(parameter)


def layout_of(network: nn.Module) -> list[dict]:
    layout, offset = [], 0
    for name, parameter in network.named_parameters():
        layout.append({"name": name, "shape": list(parameter.shape), "offset": offset})
        offset += parameter.numel()
    return layout


def kmeans(values: np.ndarray, levels: int) -> tuple[float, np.ndarray]:
    """Squared error left by Lloyd's algorithm, and its levels: the best of three starts, at levels that divide the number of
    values, the sum of magnitudes, or the range evenly."""
    values = np.sort(values.astype(np.float64))
    shares = (np.arange(levels) + 0.5) / levels
    magnitudes = np.cumsum(np.abs(values))
    starts = [
        np.quantile(values, shares),
        values[np.minimum(np.searchsorted(magnitudes, shares * magnitudes[-1]), len(values) - 1)],
        values[0] + shares * (values[-1] - values[0]),
    ]
    return min((_lloyd(values, start) for start in starts), key=lambda found: found[0])


def _lloyd(values: np.ndarray, centres: np.ndarray, rounds: int = 200) -> tuple[float, np.ndarray]:
    sums, squares = (np.concatenate([[0.0], np.cumsum(values**power)]) for power in (1, 2))
    for _ in range(rounds):
        ends = np.concatenate([[0], np.searchsorted(values, (centres[1:] + centres[:-1]) / 2), [len(values)]])
        counts = np.diff(ends)
        moved = np.where(counts > 0, np.diff(sums[ends]) / np.maximum(counts, 1), centres)
        if np.allclose(moved, centres, rtol=1e-9, atol=0):
            break
        centres = moved
    error = float((np.diff(squares[ends]) - np.diff(sums[ends]) ** 2 / np.maximum(counts, 1)).sum())
    return error, centres


def reference_error(gradients: list[np.ndarray], layout: list[dict], bits: int) -> float:
    """k-means for each parameter by itself; mean over workers."""
    errors = []
    for gradient in gradients:
        ends = [entry["offset"] for entry in layout[1:]]
        error = sum(kmeans(part, 2**bits)[0] for part in np.split(gradient, ends))
        errors.append(error / float((gradient.astype(np.float64) ** 2).sum()))
    return statistics.mean(errors)


def rows_of(gradients: list[np.ndarray], layout: list[dict]) -> list[dict]:
    rows = []
    for spec in COMPRESSORS:
        exact_spec = spec + ("" if spec == "bf16" else ",feedback=off")
        _, figures = thinwire.exchange(gradients, exact_spec, layout=layout)
        rows.append({"compressor": spec, "bits": figures["bits_per_element"], "error": figures["nmse_worker"],
                     "error_of_mean": figures["nmse_mean"]})  # fmt: skip
    for bits in REFERENCE_BITS:
        error = reference_error(gradients, layout, bits)
        rows.append({"compressor": f"k-means, {2**bits} levels", "bits": float(bits), "error": error, "error_of_mean": None})
    return rows


def mean_rows(all_rows: list[list[dict]]) -> list[dict]:
    def mean(values):
        return None if None in values else statistics.mean(values)

    keys = ("bits", "error", "error_of_mean")
    return [
        {"compressor": same[0]["compressor"], **{key: mean([row[key] for row in same]) for key in keys}}
        for same in zip(*all_rows)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="training steps before the gradients are taken")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="images per worker and step")
    parser.add_argument("--seeds", type=int, default=3, help="independent trainings to average over")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # many small products: more threads only wait for each other
    recorded = (record_gradients(seed, arguments.steps, arguments.workers, arguments.batch) for seed in range(arguments.seeds))
    rows = mean_rows([rows_of(gradients, layout) for gradients, layout in recorded])
    if arguments.json:
        print(json.dumps({"steps": arguments.steps, "workers": arguments.workers, "seeds": arguments.seeds, "rows": rows}))
        return
    print(f"{'compressor':<24} {'bits':>7} {'error':>10} {'of the mean':>12}")
    for row in rows:
        of_mean = "-" if row["error_of_mean"] is None else f"{row['error_of_mean']:.3g}"
        print(f"{row['compressor']:<24} {row['bits']:>7.3f} {row['error']:>10.3g} {of_mean:>12}")


if __name__ == "__main__":
    main()
