"""CASQ as published, slow and obvious, for one parameter of one chunk: written from the description in docs/casq.md and
sharing nothing with the library. Where the publication leaves a choice open the library's is taken: clusters are trained on a
histogram of normalised magnitudes, buckets are hashed by the entry's number, and their total is fixed."""

import itertools
import math
from dataclasses import dataclass

import numpy as np

LOWEST_OCTAVE, OCTAVES, STEPS = -12, 28, 16
LEAST_BUCKETS = 10


@dataclass
class Encoded:
    thresholds: np.ndarray  # ascending
    codes: np.ndarray  # cluster of each entry
    buckets: np.ndarray  # m_c
    bucket: np.ndarray  # of each entry, within its cluster
    decoded: np.ndarray


def bin_of(magnitude):
    """Octave and sixteenth of it: what a histogram tells apart. Below the lowest octave everything is one."""
    if magnitude == 0:
        return 0
    mantissa, exponent = math.frexp(magnitude)  # magnitude = mantissa * 2^exponent, mantissa in [1/2, 1)
    place = (exponent - 1 - LOWEST_OCTAVE) * STEPS + int((2 * mantissa - 1) * STEPS)
    return min(max(place, 0), OCTAVES * STEPS - 1)


def edge(place):
    return 0.0 if place == 0 else 2.0 ** (LOWEST_OCTAVE + place // STEPS) * (1 + place % STEPS / STEPS)


def side_histogram(magnitudes):
    """[(low, high, count)] of positive values, ascending."""
    counts = {}
    for magnitude in magnitudes:
        counts[bin_of(magnitude)] = counts.get(bin_of(magnitude), 0) + 1
    return [(edge(place), edge(place + 1), count) for place, count in sorted(counts.items())]


def percentile(bins, share):
    sought = share * sum(count for _, _, count in bins)
    for low, high, count in bins:
        if sought <= count:
            return low + (high - low) * sought / count
        sought -= count
    return bins[-1][1]


def cut(bins, at):
    kept = []
    for low, high, count in bins:
        if low < at:
            kept.append((low, min(at, high), count * (min(at, high) - low) / (high - low)))
    return kept


def spread(bins):
    """Mean of the bins' centres, and squared distances from it."""
    weight = sum(count for _, _, count in bins)
    mean = sum(count * (low + high) / 2 for low, high, count in bins) / weight
    return mean, sum(count * ((low + high) / 2 - mean) ** 2 for low, high, count in bins)


def kmeans(bins, k):
    """The best of all ways to cut the bins into k: the boundaries between neighbours' means."""
    best = min(
        itertools.combinations(range(1, len(bins)), k - 1),
        key=lambda cuts: sum(spread(bins[a:b])[1] for a, b in zip((0, *cuts), (*cuts, len(bins)))),
    )
    means = [spread(bins[a:b])[0] for a, b in zip((0, *best), (*best, len(bins)))]
    return [(a + b) / 2 for a, b in zip(means, means[1:])]


def mean_above(bins, low):
    """Mean of what is spread evenly over the bins, from `low` on."""
    parts = [(max(a, low), b, count * (b - max(a, low)) / (b - a)) for a, b, count in bins if b > low]
    return sum(count * (a + b) / 2 for a, b, count in parts) / sum(count for _, _, count in parts)


def side_thresholds(magnitudes, clusters, tail):
    """Of one sign: a tail cluster whose centre is where it begins, k-means for the rest; the nearest centre wins."""
    bins = side_histogram(magnitudes)
    begin = percentile(bins, 1 - tail)
    rest = cut(bins, begin)
    boundaries = kmeans(rest, clusters - 1) if clusters > 2 else []
    last = mean_above(rest, boundaries[-1] if boundaries else rest[0][0])
    return [*boundaries, (last + begin) / 2]


def thresholds_of(values, bits, tail):
    scale = np.float32(np.abs(values).mean(dtype=np.float64))
    normalised = values * (np.float32(1) / scale)
    half = 2 ** (bits - 1)
    above = side_thresholds([float(x) for x in normalised if x > 0], half, tail)
    below = side_thresholds([-float(x) for x in normalised if x <= 0], half, tail)
    return np.array([*(-t for t in reversed(below)), 0.0, *above], np.float32) * scale


def entropy_of(values):
    counts = {}
    for value in values:
        mantissa, exponent = math.frexp(abs(value))
        key = (value > 0, exponent, int((2 * mantissa - 1) * STEPS))
        counts[key] = counts.get(key, 0) + 1
    return -sum(n / len(values) * math.log2(n / len(values)) for n in counts.values())


def weights_of(values, codes, clusters, allocate):
    groups = [[float(x) for x in values[codes == c]] for c in range(clusters)]
    centres = [sum(group) / len(group) for group in groups]
    weights = []
    for group, centre in zip(groups, centres):
        same_sign = sum(len(other) for other, at in zip(groups, centres) if (at < 0) == (centre < 0))
        factors = {"entropy": entropy_of(group), "centre": abs(centre), "density": len(group) / same_sign}
        weights.append(math.prod(factors[name] for name in allocate.split("-")))
    return weights


def allocate_buckets(weights, entries):
    """In proportion to the weights, 10 at least if there are so many, and `entries` in all."""
    least = min(LEAST_BUCKETS, entries // len(weights))
    small = set()
    while True:
        total = sum(w for c, w in enumerate(weights) if c not in small)
        left = entries - least * len(small)
        shares = [least if c in small else left * w / total for c, w in enumerate(weights)]
        more = {c for c, share in enumerate(shares) if share < least} | small
        if more == small:
            break
        small = more
    counts = [int(share) for share in shares]
    by_fraction = sorted(range(len(weights)), key=lambda c: -(shares[c] - int(shares[c])))
    for c in by_fraction[: entries - sum(counts)]:
        counts[c] += 1
    return counts


def hash_of(entry):
    mask = 2**32 - 1
    x = (entry * 0x9E3779B9 + 0x7F4A7C15) & mask
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & mask
    x = ((x ^ (x >> 15)) * 0x735A2D97) & mask
    return x ^ (x >> 15)


def encode(values, bits, table, allocate, tail=0.05):
    """What a worker sends of float32 `values`, and what the others decode it to."""
    clusters = 2**bits
    thresholds = thresholds_of(values, bits, tail)
    codes = (values[:, None] > thresholds[None, :]).sum(axis=1)
    entries = clusters + int(table * len(values))
    buckets = allocate_buckets(weights_of(values, codes, clusters, allocate), entries)
    bucket = np.array([hash_of(i) * buckets[c] >> 32 for i, c in enumerate(codes)])
    decoded = np.zeros(len(values))
    for place in set(zip(codes, bucket)):
        shared = (codes == place[0]) & (bucket == place[1])
        decoded[shared] = values[shared].mean(dtype=np.float64)
    return Encoded(thresholds, codes, np.array(buckets), bucket, decoded)
