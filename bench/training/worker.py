"""One worker's process: trains every configuration in turn, and rank 0 reports.

Started by the launcher as `python -m bench.training.worker SETTINGS PLACE`, both JSON.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from bench.training import contenders, probes
from bench.training.model import count_parameters, make_model
from bench.training.settings import Place, Settings
from bench.training.trainer import Course, Trainer, fresh_replica

_PROGRESS_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1


class Worker:
    """Settings, place and data of one process, with the process group up."""

    def __init__(self, settings: Settings, place: Place) -> None:
        self.settings, self.place = settings, place
        self._events = os.fdopen(place.events, "w") if place.rank == 0 else None
        self.trainer = Trainer(settings, place)
        groups = [dist.new_group([rank]) for rank in range(settings.workers)]
        self._alone = groups[place.rank]
        self._split_known: dict[str, dict] = {}

    def emit(self, event: str, **values: object) -> None:
        """Rank 0 reports one line of JSON to the launcher; the others do nothing."""
        if self._events:
            self._events.write(json.dumps({"event": event, **values}) + "\n")
            self._events.flush()

    def probe(self) -> None:
        """Measures the network, and reports `network`."""
        elements = count_parameters(make_model(0))
        rate = probes.link_rate(self.place.rank, self.place.addresses)
        seconds = probes.all_reduce_seconds(elements)
        limit = contenders.ring_bytes(self.settings.workers, 4 * elements) * 8 / rate
        steps = self.trainer.order(0).steps(self.settings.epochs)
        self.emit("network", payload_bits_per_second=rate, elements=elements, steps=steps,
                  all_reduce_seconds=seconds, all_reduce_limit_seconds=limit,
                  all_reduce_over_limit=seconds / limit if limit else None)

    def run(self, seed: int, spec: str) -> None:
        """Trains one configuration, and reports `progress` and `trained`."""
        self.emit("begin", seed=seed, compressor=spec)
        split = self._split(spec)
        replica = fresh_replica(self.settings, spec, seed)
        course = self.trainer.train(seed, replica, self._progress(seed, spec))
        costs = replica.costs(len(course.losses))
        replica.close()
        everyone = [None] * self.settings.workers if self.place.rank == 0 else None
        dist.gather_object((course, costs), everyone)
        if everyone:
            self.emit("trained", seed=seed, compressor=spec,
                      **_merge([pair[0] for pair in everyone], [pair[1] for pair in everyone],
                               replica.warm_up_steps), **split)

    def _progress(self, seed: int, spec: str):
        last = 0.0

        def report(done: int, steps: int, loss: float) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _PROGRESS_SECONDS or done == steps:
                last = now
                self.emit("progress", seed=seed, compressor=spec, step=done, steps=steps,
                          loss=loss)
        return report

    def _split(self, spec: str) -> dict:
        """Compute and compression of a step; measured once a compressor, at its first seed."""
        if spec not in self._split_known:
            compute = probes.compute_seconds(self.trainer, self._alone)
            compress = 0.0 if spec == "plain" else None
            if compress is None and contenders.is_pytorch(spec):
                compress = probes.compress_seconds(self.trainer, spec, self._alone)
            self._split_known[spec] = {"compute_seconds": compute, "hook_seconds": compress}
        return self._split_known[spec]


def _merge(courses: list[Course], costs: list[contenders.Costs], warm_up: int) -> dict:
    """One record of a configuration: means over workers, step by step."""
    def mean_steps(name: str) -> list[float]:
        return [sum(values) / len(values)
                for values in zip(*(getattr(course, name) for course in courses))]

    def mean_cost(name: str) -> float | None:
        values = [getattr(cost, name) for cost in costs]
        return None if None in values else sum(values) / len(values)

    steps = len(courses[0].losses)
    busy = mean_cost("compress_seconds")
    return {
        "steps": steps, "warm_up_steps": min(warm_up, steps - 1),
        "losses": [round(value, 5) for value in mean_steps("losses")],
        "step_seconds": [round(value, 6) for value in mean_steps("seconds")],
        "step_bytes": [round(value) for value in mean_steps("bytes_sent")] or None,
        "accuracies": courses[0].accuracies,
        "arithmetic_bytes": mean_cost("bytes_sent"),
        "compress_seconds": None if busy is None else busy / steps,
        "compression_error": mean_cost("compression_error"),
        "compressor_stats": costs[0].details,
    }


def _die_with_launcher() -> None:
    """The kernel ends this process when the launcher is killed, however it is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    _die_with_launcher()
    settings, place = Settings.from_json(sys.argv[1]), Place.from_json(sys.argv[2])
    torch.set_num_threads(place.threads)
    dist.init_process_group(
        "gloo", rank=place.rank, world_size=settings.workers,
        init_method=f"tcp://{place.addresses[0]}:{place.master_port}",
        timeout=datetime.timedelta(seconds=settings.timeout))
    worker = Worker(settings, place)
    worker.probe()
    for seed in settings.seeds:
        for spec in settings.compressors:
            if (seed, spec) not in place.finished:
                worker.run(seed, spec)
    worker.emit("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
