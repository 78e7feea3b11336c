"""What gradiveq keeps of a recorded layer, beside an independent PCA in NumPy and random projections.

    .venv/bin/python -m bench.gradiveq_error [--folder out/gradients] [--learn 100] [--use 60] [--workers 4] [--every] [--json]

Trains a small CNN on Fashion-MNIST in one process, data-parallel, and records every worker's gradient of its 64x64x3x3
convolution (thinwire.torch.GradientRecorder); a folder that holds a recording already is used as it is. Then `build/thinwire
exchange` runs a cycle of gradiveq over it: learnt on the first steps, error of the mean, |g - g'|^2 / |g|^2, over those
after them. The references are computed by NumPy in double precision from the mean gradients: PCA of the same slices, a
random orthonormal projection of them, and PowerSGD (rank of equal numbers a step, one warm iteration, no feedback).
Quantizers follow at the bits that they really send. The first table is of refresh=every, which has no learning phase, and of
PowerSGD: errors without feedback, and with it |sum of g - sum of g'|^2 in the end, in energies of one gradient: what still
waits. The last table has everything that rounds to a scale which all workers share, or to half floats, and so adds up in
all-reduce: beside each of them gradiveq:rate=R at no more bits. A table of what is gathered has casq:rate=R of the entries, and of the
coefficients of all components, with the bits that their basis takes, spread over 400 steps; and of what NumPy has rotated, along
input channels, and along output channels too.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.training.data import Order, load
from thinwire.torch import GradientRecorder, read_recording

LAYER = "3.weight"
AXES = {"filter": 576, "in": 64, "kernel": 9, "out": 64, "flat": 256, "square": 192}
RATIOS = (4, 8, 16)
RATES = (0.25, 0.5, 1, 2, 4)
EVERY = [f"ratio={ratio}{more}" for more in (",axis=filter,probes=1", "", "/bf16") for ratio in RATIOS]
EVERY += [f"ratio={ratio}/qsgd:bits={bits},reduce=sum" for bits in (4, 6) for ratio in (2, *RATIOS)]
ADDED_UP = [f"qsgd:bits={bits},norm={norm},reduce=sum" for norm in ("max", "l2") for bits in range(2, 9)] + ["bf16", "fp16"]
CODED_RATES = (0.125, 0.25, 0.5, 1, 2)
CODED = ("filter", "in", "kernel")  # with casq:rate=R behind all components
ROTATED = {"in, NumPy": ("in",), "both sides": ("in", "out")}  # the same behind rotations that gradiveq does not have, or has otherwise
STAGED = [f"gradiveq:ratio={ratio},{{cycle}}/{stage}"
          for ratio in RATIOS for stage in ("qsgd:bits=4,reduce=sum", "qsgd:bits=6,reduce=sum", "bf16", "none")]  # fmt: skip


def build_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 7 * 7, 10),
    )  # fmt: skip


def record(folder: Path, workers: int, steps: int, warm_up: int, batch: int) -> None:
    torch.manual_seed(0)
    network, images = build_network(), load("train")
    recorders = [GradientRecorder(network, folder, steps, rank, [LAYER]) for rank in range(workers)]
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    order = Order(len(images), workers, batch, 0)
    for step, shards in enumerate(zip(*(order.batches(rank, warm_up + steps) for rank in range(workers)))):
        total = [torch.zeros_like(parameter) for parameter in network.parameters()]
        for recorder, indices in zip(recorders, shards):
            network.zero_grad()
            pixels, labels = images.batch(indices)
            nn.functional.cross_entropy(network(pixels), labels).backward()
            if step >= warm_up:
                recorder.record()
            for part, parameter in zip(total, network.parameters()):
                part += parameter.grad / workers
        for part, parameter in zip(total, network.parameters()):
            parameter.grad = part
        optimiser.step()


def slices_of(gradient: np.ndarray, axis: str) -> np.ndarray:
    """The definition of each axis, of a (64, 64, 3, 3) gradient."""
    gradient = gradient.reshape(64, 64, 9)
    if axis == "in":
        return gradient.transpose(0, 2, 1).reshape(-1, 64)
    if axis == "out":
        return gradient.transpose(1, 2, 0).reshape(-1, 64)
    if axis == "square":
        return gradient.reshape(64, 64, 3, 3).transpose(0, 2, 1, 3).reshape(-1, 192)
    return gradient.reshape(-1, AXES[axis])


def rotated(gradients: np.ndarray, learn: int, axes: tuple[str, ...]) -> np.ndarray:
    """Gradients (steps, workers, entries) along the principal directions of the first steps' means, of channels on one side or both."""
    means = gradients[:learn].astype(np.float64).mean(1)
    turned = gradients.reshape(*gradients.shape[:2], 64, 64, 9).astype(np.float64)
    for axis in axes:
        learnt = np.concatenate([slices_of(mean, axis) for mean in means])
        basis = np.linalg.eigh(np.cov(learnt.T, bias=True))[1]
        turned = np.einsum("swoik,ij->swojk" if axis == "in" else "swoik,oj->swjik", turned, basis, optimize=True)
    return turned.reshape(gradients.shape).astype(np.float32)


def pca_error(means: np.ndarray, learn: int, axis: str, ratio: float, random: bool = False) -> float:
    learnt = np.concatenate([slices_of(gradient, axis) for gradient in means[:learn]])
    mean, dims = learnt.mean(0), max(round(AXES[axis] / ratio), 1)
    basis = np.linalg.eigh(np.cov(learnt.T, bias=True))[1][:, -dims:]
    if random:
        mean, basis = 0 * mean, np.linalg.qr(np.random.default_rng(0).normal(size=basis.shape))[0]
    return sum(
        ((x - (mean + (x - mean) @ basis @ basis.T)) ** 2).sum() for x in (slices_of(g, axis) for g in means[learn:])
    ) / (means[learn:] ** 2).sum()


def powersgd_rank(ratio: float) -> int:
    return max(int(64 * 576 / ratio / (64 + 576)), 1)


def powersgd(gradients: np.ndarray, ratio: float, feedback: bool) -> np.ndarray:
    """What PowerSGD decodes gradients to: one warm iteration a step."""
    q = np.random.default_rng(0).normal(size=(576, powersgd_rank(ratio)))
    residual, decoded = np.zeros((64, 576)), np.zeros_like(gradients)
    for step, gradient in enumerate(gradients):
        matrix = gradient.reshape(64, 576) + residual
        p = np.linalg.qr(matrix @ q)[0]
        q = matrix.T @ p
        decoded[step] = (p @ q.T).ravel()
        if feedback:
            residual = matrix - p @ q.T
    return decoded


def powersgd_error(means: np.ndarray, learn: int, ratio: float) -> float:
    return ((means - powersgd(means, ratio, False))[learn:] ** 2).sum() / (means[learn:] ** 2).sum()


def powersgd_left(means: np.ndarray, learn: int, ratio: float) -> float:
    return ((means - powersgd(means, ratio, True)).sum(0) ** 2).sum() / (means[learn:] ** 2).sum(1).mean()


class Recording:
    """A recording as files that the tool reads."""

    def __init__(self, gradients: np.ndarray, layout: list[dict], learn: int, folder: str):
        self.folder, self.learn, self.steps = Path(folder), learn, len(gradients)
        np.save(self.folder / "g.npy", gradients)
        (self.folder / "layout.json").write_text(json.dumps(layout))
        self.means = gradients.astype(np.float64).mean(1)

    def figures(self, spec: str) -> tuple[float, float]:
        """Bits an entry and error of the mean, over the steps after the learning ones."""
        return self.decode(spec)[:2]

    def decode(self, spec: str) -> tuple[float, float, float]:
        """Also the energy of what was not sent in the end, in gradients: with feedback it waits, without it is lost."""
        output = subprocess.run(
            ["build/thinwire", "exchange", "--compressor", spec, "--input", self.folder / "g.npy", "--layout",
             self.folder / "layout.json", "--output", self.folder / "mean.npy", "--json"],
            check=True, capture_output=True, text=True).stdout  # fmt: skip
        decoded = np.load(self.folder / "mean.npy").reshape(self.steps, -1).astype(np.float64)
        mean, exact = decoded[self.learn :], self.means[self.learn :]
        left = ((self.means - decoded).sum(0) ** 2).sum() / (exact**2).sum(1).mean()
        bits = [step["bits_per_element"] for step in json.loads(output)["per_step"][self.learn :]]
        return float(np.mean(bits)), float(((mean - exact) ** 2).sum() / (exact**2).sum()), float(left)


def rows_of(recording: Recording, cycle: str) -> list[dict]:
    means, learn, rows = recording.means, recording.learn, []
    for axis, entries in AXES.items():
        for ratio in (ratio for ratio in RATIOS if ratio <= entries):
            bits, error = recording.figures(f"gradiveq:axis={axis},slice={entries},ratio={ratio},{cycle}")
            rows.append({"row": f"axis={axis},ratio={ratio}", "bits": bits, "error": error,
                         "pca": pca_error(means, learn, axis, ratio), "random": pca_error(means, learn, axis, ratio, True),
                         "powersgd": powersgd_error(means, learn, ratio)})  # fmt: skip
    more = [f"gradiveq:slice=144,ratio={ratio},{cycle}" for ratio in RATIOS]  # quarters of filters
    more += [f"gradiveq:rate={rate},{cycle}" for rate in RATES]
    more += [f"qsgd:bits={bits},reduce=gather" for bits in (2, 3, 4)]
    for spec in [*more, "casq:bits=1,feedback=off", "casq:bits=2,feedback=off"]:
        bits, error = recording.figures(spec)
        rows.append({"row": spec.replace(f",{cycle}", ""), "bits": bits, "error": error})
    return rows


def every_rows(recording: Recording) -> list[dict]:
    """Without learning phases; with feedback what matters is not a step's error but what is left."""
    rows = []
    for what in EVERY:
        first, *stage = what.split("/")
        spec = "/".join([f"gradiveq:refresh=every,{first},feedback={{}}", *stage])
        bits, error = recording.figures(spec.format("off"))
        rows.append({"row": f"refresh=every,{what}", "bits": bits, "error": error, "left": recording.decode(spec.format("on"))[2]})
    for ratio in RATIOS:
        rank = powersgd_rank(ratio)
        rows.append({"row": f"PowerSGD of rank {rank}", "bits": 32 * rank * (64 + 576) / (64 * 576),
                     "error": powersgd_error(recording.means, recording.learn, ratio),
                     "left": powersgd_left(recording.means, recording.learn, ratio)})  # fmt: skip
    return rows


def equal_bits_rows(recording: Recording, cycle: str) -> list[dict]:
    rows = []
    for spec in [*ADDED_UP, *(spec.format(cycle=cycle) for spec in STAGED)]:
        bits, error = recording.figures(spec)
        rate = min(math.floor(bits * 1000) / 1000, 16)
        rate_bits, rate_error = recording.figures(f"gradiveq:rate={rate},{cycle}")
        rows.append({"row": spec.replace(f",{cycle}", ""), "bits": bits, "error": error,
                     "rate_bits": rate_bits, "rate_error": rate_error})  # fmt: skip
    return rows


def coded_rows(recording: Recording, cycle: str, turned: dict[str, Recording]) -> list[dict]:
    rows = []
    for rate in CODED_RATES:
        specs = {"entries": f"casq:rate={rate},feedback=off", "rate=": f"gradiveq:rate={rate},{cycle}"}
        specs |= {axis: f"gradiveq:ratio=1,axis={axis},{cycle}/casq:rate={rate},feedback=off" for axis in CODED}
        figures = {name: recording.figures(spec) for name, spec in specs.items()}
        figures |= {name: other.figures(specs["entries"]) for name, other in turned.items()}
        rows.append({"rate": rate, "bits": {name: bits for name, (bits, _) in figures.items()},
                     "errors": {name: error for name, (_, error) in figures.items()}})  # fmt: skip
    return rows


def basis_bits(axes: tuple[str, ...], uses: int) -> float:
    """Bits an entry and step of bases of all components, U, mu and deviations, that serve so many steps."""
    return sum(32 * (entries * entries + 2 * entries) / (64 * 576 * uses) for entries in (AXES[axis] for axis in axes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("out/gradients"))
    parser.add_argument("--learn", type=int, default=100)
    parser.add_argument("--use", type=int, default=60)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--warm-up", type=int, default=100, help="training steps before the recording")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--every", action="store_true", help="only refresh=every and PowerSGD")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    learn, steps = arguments.learn, arguments.learn + arguments.use
    if not (arguments.folder / "layout.json").exists():
        unfinished = arguments.folder.with_suffix(".unfinished")
        record(unfinished, arguments.workers, steps, arguments.warm_up, arguments.batch)
        unfinished.rename(arguments.folder)
    gradients, layout = read_recording(arguments.folder)
    with tempfile.TemporaryDirectory() as folder:
        recording = Recording(gradients[:steps], layout, learn, folder)
        cycle = f"learn={learn},lag=0,use={arguments.use},smallest=0"
        every = every_rows(recording)
        rows, equal_bits, coded = [], [], []
        if not arguments.every:
            rows, equal_bits = (of(recording, cycle) for of in (rows_of, equal_bits_rows))
            turned = {}
            for name, axes in ROTATED.items():
                (place := Path(folder) / name).mkdir()
                turned[name] = Recording(rotated(gradients[:steps], learn, axes), layout, learn, str(place))
            coded = coded_rows(recording, cycle, turned)
    if arguments.json:
        print(json.dumps({"learn": learn, "use": arguments.use, "workers": gradients.shape[1], "every": every, "rows": rows,
                          "equal_bits": equal_bits, "coded": coded}))  # fmt: skip
        return
    print(f"{'':<54} {'bits':>6} {'error':>8} {'left, with feedback':>20}")
    for row in every:
        print(f"{row['row']:<54} {row['bits']:>6.2f} {row['error']:>8.3g} {row['left']:>20.3g}")
    if arguments.every:
        return
    print(f"\n{'':<54} {'bits':>6} {'error':>8} {'PCA':>8} {'random':>8} {'PowerSGD':>8}")
    for row in rows:
        figures = "".join(f" {row[key]:>8.3g}" for key in ("error", "pca", "random", "powersgd") if key in row)
        print(f"{row['row']:<54} {row['bits']:>6.2f}{figures}")
    print(f"\n{'':<54} {'bits':>6} {'error':>8} {'rate=':>6} {'error':>8}")
    for row in equal_bits:
        print(f"{row['row']:<54} {row['bits']:>6.2f} {row['error']:>8.2g} {row['rate_bits']:>6.2f} {row['rate_error']:>8.2g}")
    names = list(coded[0]["errors"])
    print(f"\n{'casq:rate=':>19} " + "".join(f"{name:>12}" for name in names))
    for row in coded:
        print(f"{row['rate']:>19} " + "".join(f"{row['errors'][name]:>12.3g}" for name in names))
    bases = {name: ROTATED.get(name, (name,) if name in AXES else ()) for name in names}
    print(f"{'bits of the basis':>19} " + "".join(f"{basis_bits(axes, 400):>12.3f}" for axes in bases.values()))


if __name__ == "__main__":
    main()
