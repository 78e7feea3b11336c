"""What dither and a trellis would make of `casq:rate=`, by an ideal coder: error at equal bits on the recorded gradients.

    .venv/bin/python -m bench.rate_variants [--bits 0.25,0.5,1,2,3] [FILE.npy ...]

Blocks of 128 have classes, as in docs/rate.md: here their mean magnitude in half octaves, whose entropy is paid; within a class levels cost the
entropy of whether they are 0, and else of a geometric density, fitted to this very gradient, and are decoded to the mean of what they stand for. What differs is how values become levels:

- dead zone: floor(|v|/D + .4), as `casq:rate=` has it
- by rate: of neighbouring levels, and 0, the one of the least |error|^2 + lambda bits
- trellis: the same with four states, as in VVC (Schwarz et al., "Hybrid video coding with trellis-coded quantization", DCC 2019): levels are even or odd multiples
  of a step, and their parity chooses which come next; the best way by Viterbi's algorithm. Levels are coded in a state's own tables
- planes: the trellis with one table for all states, which is what bit planes allow: their bytes are of eight entries, whose states are known only
  once they are decoded
- dither: round(v/D + u) - u, u uniform and known to both sides, its eighth a condition of the entropy: unbiased, decoded as it is
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BLOCK, PASSES = 128, 4
FURTHEST = 3  # levels from here on are decoded alike
LAMBDAS = (0.05, 0.1, 0.15, 0.2)  # times D^2, for a bit
NEXT_STATE = np.array([[0, 2], [2, 0], [1, 3], [3, 1]])  # by the level's parity
Result = tuple[float, float]  # bits an entry, |error|^2 / |gradient|^2


def entropy(counts: np.ndarray) -> float:
    """Bits of all symbols, the last axis; those of other axes are known."""
    totals = counts.sum(-1, keepdims=True)
    return float(-(counts * np.log2(np.where(counts > 0, counts, 1) / np.maximum(totals, 1))).sum())


@dataclass(frozen=True)
class Prices:
    """Bits of magnitudes within each context: whether they are 0, and what they are above 1, which is taken for geometric."""

    zero: np.ndarray
    one: np.ndarray
    further: np.ndarray  # for each level beyond

    def of(self, context: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
        return np.where(magnitude == 0, self.zero[context], self.one[context] + (magnitude - 1) * self.further[context])


def fitted(context: np.ndarray, magnitude: np.ndarray, contexts: int) -> Prices:
    context, magnitude = context.ravel(), magnitude.ravel()
    all_of = np.bincount(context, minlength=contexts) + 0.5
    others = np.bincount(context, magnitude > 0, minlength=contexts) + 0.25
    excess = (np.bincount(context, np.maximum(magnitude - 1, 0), minlength=contexts) + 0.05) / others
    return Prices(-np.log2(1 - others / all_of), -np.log2(others / all_of) + np.log2(1 + excess), np.log2((1 + excess) / excess))


def classes_of(blocks: np.ndarray, step: float) -> tuple[np.ndarray, int, float]:
    """The number of each block's class, how many there are, and their bits: each is known from the one before."""
    octaves = np.log2(np.maximum(np.abs(blocks).mean(1) / step, 2.0**-6))
    _, number = np.unique(np.round(2 * octaves), return_inverse=True)
    count = int(number.max()) + 1
    pairs = np.zeros((count, count))
    np.add.at(pairs, (number[:-1], number[1:]), 1)
    return number, count, entropy(pairs)


def figures(blocks: np.ndarray, decoded: np.ndarray, bits: float) -> Result:
    return bits / blocks.size, float(((blocks - decoded) ** 2).sum() / (blocks**2).sum())


def mean_decoded(blocks: np.ndarray, context: np.ndarray, magnitude: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Every magnitude as its level's value and what those of its context and level are more, in the mean."""
    key = context * (FURTHEST + 1) + np.minimum(magnitude, FURTHEST).astype(int)
    more = np.bincount(key.ravel(), (np.abs(blocks) - value).ravel()) / np.maximum(np.bincount(key.ravel()), 1)
    return np.where(magnitude == 0, 0, value + more[key]) * np.sign(blocks)


def dead_zone(blocks: np.ndarray, step: float, _: float) -> Result:
    number, count, bits = classes_of(blocks, step)
    magnitude = np.floor(np.abs(blocks) / step + 0.4)
    context = np.repeat(number[:, None], BLOCK, 1)
    bits += fitted(context, magnitude, count).of(context, magnitude).sum() + np.count_nonzero(magnitude)
    return figures(blocks, mean_decoded(blocks, context, magnitude, magnitude * step), bits)


def dithered(blocks: np.ndarray, step: float, _: float) -> Result:
    number, count, bits = classes_of(blocks, step)
    uniform = np.random.default_rng(1).uniform(-0.5, 0.5, blocks.shape)
    levels = np.round(blocks / step + uniform)
    context = number[:, None] * 8 + np.minimum(((uniform + 0.5) * 8).astype(int), 7)
    signs = np.zeros((8 * count, 2))
    np.add.at(signs, (context[levels != 0], (levels[levels != 0] < 0).astype(int)), 1)
    bits += fitted(context, np.abs(levels), 8 * count).of(context, np.abs(levels)).sum() + entropy(signs)
    return figures(blocks, (levels - uniform) * step, bits)


def multiples(states: int, state: np.ndarray | int, step: float) -> tuple[float, np.ndarray | float]:
    """Level k means k times the first, the second less. Of four states the last two have the odd multiples of D, and 0."""
    return (step, 0.0) if states == 1 else (2 * step, np.where(np.asarray(state) >= 2, step, 0.0))


def chosen_levels(
    blocks: np.ndarray, number: np.ndarray, states: int, step: float, price: float, prices: Prices, tables: int
) -> tuple[np.ndarray, np.ndarray]:
    """Magnitudes and the states that they were chosen in, by Viterbi's algorithm over each block. A context is a class and, of several tables, a state."""
    everyone = np.arange(len(blocks))
    total = np.full((len(blocks), states), np.inf)
    total[:, 0] = 0
    chosen = np.zeros((BLOCK, len(blocks), states), np.int32)
    came_from = np.zeros((BLOCK, len(blocks), states), np.int8)
    for i in range(BLOCK):
        magnitude = np.abs(blocks[:, i])
        best = np.full_like(total, np.inf)
        for state in range(states):
            width, less = multiples(states, state, step)
            near = np.floor((magnitude + less) / width)
            for level in (np.zeros_like(near), near, near + 1):
                value = np.where(level > 0, level * width - less, 0)
                bits = prices.of(number * tables + state % tables, level) + (level > 0)
                cost = total[:, state] + (magnitude - value) ** 2 + price * step**2 * bits
                into = np.zeros(len(blocks), int) if states == 1 else NEXT_STATE[state, level.astype(int) % 2]
                better = cost < best[everyone, into]
                at = everyone[better], into[better]
                best[at] = cost[better]
                chosen[i][at] = level[better]
                came_from[i][at] = state
        total = best
    levels, taken_in = np.zeros(blocks.shape, np.int64), np.zeros(blocks.shape, np.int64)
    state = total.argmin(1)
    for i in reversed(range(BLOCK)):
        levels[:, i] = chosen[i][everyone, state]
        state = came_from[i][everyone, state].astype(int)
        taken_in[:, i] = state
    return levels, taken_in


def by_rate(states: int, tables: int) -> Callable[[np.ndarray, float, float], Result]:
    def quantize(blocks: np.ndarray, step: float, price: float) -> Result:
        number, count, bits = classes_of(blocks, step)
        contexts = count * tables
        prices = Prices(np.full(contexts, 1.0), np.full(contexts, 2.0), np.full(contexts, 1.0))
        for _ in range(PASSES):
            magnitude, taken_in = chosen_levels(blocks, number, states, step, price, prices, tables)
            context = number[:, None] * tables + taken_in % tables
            prices = fitted(context, magnitude, contexts)
        width, less = multiples(states, taken_in, step)
        bits += prices.of(context, magnitude).sum() + np.count_nonzero(magnitude)
        return figures(blocks, mean_decoded(blocks, context, magnitude, magnitude * width - less), bits)

    return quantize


WAYS = {
    "dead zone": (dead_zone, (0.0,)),
    "by rate": (by_rate(1, 1), LAMBDAS),
    "trellis": (by_rate(4, 4), LAMBDAS),
    "planes": (by_rate(4, 1), LAMBDAS),
    "dither": (dithered, (0.0,)),
}


def error_at(rate: float, blocks: np.ndarray, way: Callable, price: float) -> float:
    """By halves of the step's logarithm, and a straight line between the last two."""
    low, high = np.log2(np.abs(blocks).max()) - 24, np.log2(np.abs(blocks).max())
    below = above = None
    for _ in range(12):
        middle = (low + high) / 2
        found = way(blocks, 2.0**middle, price)
        if found[0] > rate:
            low, above = middle, found
        else:
            high, below = middle, found
    if below is None or above is None:
        return float("nan")
    share = (rate - below[0]) / (above[0] - below[0])
    return float(np.exp((1 - share) * np.log(below[1]) + share * np.log(above[1])))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rate_variants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=[Path("examples/gradients/cnn.npy"), Path("examples/gradients/lstm.npy")], metavar="FILE.npy")
    parser.add_argument("--bits", default="0.25,0.5,1,2,3", help="an entry, comma-separated")
    parser.add_argument("--blocks", type=int, default=1500, help="of each gradient, evenly spaced (default 1500)")
    options = parser.parse_args()
    for path in options.files:
        gradient = np.load(path).astype(np.float64).ravel()
        all_blocks = gradient[: gradient.size // BLOCK * BLOCK].reshape(-1, BLOCK)
        blocks = all_blocks[np.linspace(0, len(all_blocks) - 1, min(options.blocks, len(all_blocks))).astype(int)]
        print(f"\n{path.name}: error at equal bits, and decibels below the dead zone's")
        print("bits  " + "".join(f"{name:>22}" for name in WAYS))
        for rate in map(float, options.bits.split(",")):
            errors = {name: min(error_at(rate, blocks, way, price) for price in prices) for name, (way, prices) in WAYS.items()}
            gains = {name: 10 * np.log10(errors["dead zone"] / error) for name, error in errors.items()}
            print(f"{rate:<6g}" + "".join(f"{errors[name]:>13.3g}{gains[name]:>+6.2f} dB" for name in WAYS), flush=True)


if __name__ == "__main__":
    main()
