"""What CASQ's error should be with tables, from its clusters' sizes and variances alone: the formulas of docs/casq.md."""

from __future__ import annotations

import functools

import numpy as np

import thinwire

CHUNK = 32768


def decode(values: np.ndarray, spec: str) -> tuple[np.ndarray, dict]:
    return thinwire.exchange([values], f"casq:feedback=off,{spec}")


def clusters_of(values: np.ndarray, bits: int) -> list[list[np.ndarray]]:
    """The values of the clusters of every chunk, told from what they decode to without tables."""
    decoded, _ = decode(values, f"bits={bits}")
    chunks = []
    for first in range(0, len(values), CHUNK):
        part, centres = values[first : first + CHUNK].astype(np.float64), decoded[first : first + CHUNK]
        chunks.append([part[centres == c] for c in np.unique(centres)])
    return chunks


def by_rank(clusters: list[np.ndarray], entries: int, in_order: bool = False) -> float:
    """Cluster after cluster, the largest variance first, becomes exact: a further bucket saves the variance. In a gradient's
    own order neighbours are alike, and what shares a bucket varies less than the cluster."""
    error = 0.0
    for cluster in sorted(clusters, key=lambda cluster: -cluster.var()):
        n, buckets = len(cluster), min(len(cluster), 1 + entries)
        neighbours = in_order and 1 < buckets < n
        error += n * _local_variance(cluster, n / buckets) if neighbours else (n - buckets) * cluster.var()
        entries -= buckets - 1
    return error


def _local_variance(cluster: np.ndarray, load: float) -> float:
    """Mean squared distance from the mean of `load` neighbours, from how much entries at each distance differ."""

    def of_whole(k):
        differences = [np.mean((cluster[d:] - cluster[:-d]) ** 2) for d in range(1, k)]
        return sum((k - d) * difference for d, difference in enumerate(differences, 1)) / k**2

    low = int(load)
    share = (load - low) * (low + 1) / load  # of entries that are in the larger buckets
    return (1 - share) * of_whole(low) + share * of_whole(low + 1)


def by_hash(clusters: list[np.ndarray], entries: int) -> float:
    """Bucket after bucket goes where it saves most: n v (1 - (1 - exp(-load)) / load), by small steps."""

    def error(n, variance, buckets):
        load = n / buckets
        return n * variance * (1 - (1 - np.exp(-load)) / load)

    step = max(1, entries // 400)
    statistics = [(len(cluster), cluster.var()) for cluster in clusters]
    buckets = [1] * len(clusters)
    while entries > 0:
        saved = [error(n, v, m) - error(n, v, m + step) for (n, v), m in zip(statistics, buckets)]
        buckets[int(np.argmax(saved))] += step
        entries -= step
    return sum(error(n, v, m) for (n, v), m in zip(statistics, buckets))


def predicted_error(values: np.ndarray, bits: int, table: float, assign: str, in_order: bool = False) -> float:
    """Of all chunks, as a share of the energy. A cluster without entries keeps its bucket."""
    predict = by_hash if assign == "hash" else functools.partial(by_rank, in_order=in_order)
    sizes = [min(CHUNK, len(values) - first) for first in range(0, len(values), CHUNK)]
    chunks = zip(clusters_of(values, bits), sizes)
    error = sum(predict(clusters, int(table * size) + 2**bits - len(clusters)) for clusters, size in chunks)
    return error / float((values.astype(np.float64) ** 2).sum())
