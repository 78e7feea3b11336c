"""thinwire's figures for Prometheus, by one line: thinwire.prometheus.export(attachment)."""

import weakref
from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from thinwire._native import ArgumentError

_GAUGES = ("ratio", "compressed_share", "compression_error")  # everything else only grows

Labels = dict[str, str]


class _Figures(Collector):
    """Of all that one registry exports and that is still there."""

    def __init__(self) -> None:
        self._exported: list[tuple[weakref.ref[Any], Labels]] = []

    def add(self, averager: Any, labels: Labels) -> None:
        self._exported = [(there, its) for there, its in self._exported if there() not in (None, averager)]
        if any(its == labels for _, its in self._exported):
            raise ArgumentError(f"something else is exported with the labels {labels}; give one of them another label, such as model='encoder'")
        self._exported.append((weakref.ref(averager), labels))

    def describe(self) -> list[Metric]:
        return []  # names are its own, and what there is to tell depends on the steps so far

    def collect(self) -> Iterator[Metric]:
        metrics: dict[str, Metric] = {}
        for averager, labels in self._exported:
            if (there := averager()) is None:
                continue
            for name, value in there.stats().items():
                if value is None:
                    continue
                kind, suffix = ("gauge", "") if name in _GAUGES else ("counter", "_total")
                metric = metrics.setdefault(name, Metric(f"thinwire_{name}", f"stats()['{name}'] of this worker", kind))
                for phase, number in value.items() if name == "seconds" else [(None, value)]:
                    metric.add_sample(metric.name + suffix, labels | ({} if phase is None else {"phase": phase}), number)
        yield from metrics.values()


_figures: weakref.WeakKeyDictionary[CollectorRegistry, _Figures] = weakref.WeakKeyDictionary()


def export(averager: Any, *, registry: CollectorRegistry = REGISTRY, **labels: str) -> None:
    """Lets a registry of prometheus_client tell what stats() knows whenever it is asked: ``thinwire_ratio``, ``thinwire_traffic_bytes_total``,
    ``thinwire_seconds_total{phase="wire"}`` and so on.

    averager: what attach() has returned, or LocalSteps; as long as it exists. labels: of its samples, beside ``rank``; whoever exports several gives
    each a label of its own. Raises ArgumentError where two have the same, and for a label that is not text or that thinwire gives itself.
    """
    for name, value in labels.items():
        if name in ("rank", "phase") or not isinstance(value, str):
            raise ArgumentError(f"the label {name}={value!r} is not allowed; labels are text, and rank and phase are thinwire's own")
    if registry not in _figures:
        registry.register(figures := _Figures())
        _figures[registry] = figures
    _figures[registry].add(averager, {"rank": str(averager.rank), **labels})
