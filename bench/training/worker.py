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

from bench.training import probes, specs, tasks
from bench.training.model import count_parameters
from bench.training.replica import Costs, Replica, ring_bytes
from bench.training.settings import Place, Settings
from bench.training.trainer import Course, Trainer

_PROGRESS_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1


class Worker:
    """Settings, place and data of one process, with the process group up."""

    def __init__(self, settings: Settings, place: Place) -> None:
        self.settings, self.place = settings, place
        self._events = os.fdopen(place.events, "w") if place.rank == 0 else None
        self.trainer: Trainer = tasks.TASKS[settings.task].trainer()(settings, place)
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
        model = self.trainer.make_model(0)
        elements = count_parameters(model)
        rate = probes.link_rate(self.place.rank, self.place.addresses)
        sent = ring_bytes(self.settings.workers, 4 * elements)
        limit = sent * 8 / rate
        seconds, busy = probes.all_reduce_seconds(elements, repeats=2 if limit > 0.5 else 5)
        by_backend = probes.backend_round_seconds()
        by_lanes = probes.lane_round_seconds() if any(map(specs.needs_thinwire, self.settings.compressors)) else None
        ddp_step = probes.ddp_step_seconds(self.trainer, self._alone)
        steps = self.trainer.order(0).steps(self.settings.epochs)
        self.emit("network", payload_bits_per_second=rate, elements=elements, steps=steps,
                  all_reduce_seconds=seconds, all_reduce_limit_seconds=limit,
                  all_reduce_over_limit=seconds / limit if limit else None,
                  sending_seconds_per_byte=busy / sent if sent else None, backend_round_seconds=by_backend, round_seconds=by_lanes, ddp_step_seconds=ddp_step,
                  parameters=[{"name": name, "shape": list(parameter.shape)} for name, parameter in model.named_parameters()])

    def run(self, seed: int, spec: str) -> None:
        """Trains one configuration, and reports `progress` and `trained`."""
        self.emit("begin", seed=seed, compressor=spec)
        split = self._split(spec)
        replica = self.trainer.replica(spec, seed)
        accounts: list[Costs] = []
        course = self.trainer.train(seed, replica, self._watch(seed, spec, replica, accounts))
        lanes = replica.lanes
        replica.close()
        everyone = [None] * self.settings.workers if self.place.rank == 0 else None
        dist.gather_object((course, accounts), everyone)
        if everyone:
            courses, costs = zip(*everyone)
            self.emit("trained", seed=seed, compressor=spec, task=self.settings.task, lanes=lanes,
                      **_merge(courses, costs, replica.warm_up_steps), **split)

    def _watch(self, seed: int, spec: str, replica: Replica, accounts: list[Costs]):
        """Reports progress, and takes the costs after the warm-up and at the end."""
        last = 0.0

        def after_step(done: int, steps: int, loss: float) -> None:
            nonlocal last
            if done in (min(replica.warm_up_steps, steps - 1), steps):
                accounts.append(replica.costs(done))
            now = time.monotonic()
            if now - last >= _PROGRESS_SECONDS or done == steps:
                last = now
                self.emit("progress", seed=seed, compressor=spec, step=done, steps=steps,
                          loss=loss)
        return after_step

    def _split(self, spec: str) -> dict:
        """Compute and compression of a step; measured once a compressor, at its first seed."""
        if spec not in self._split_known:
            compute = probes.compute_seconds(self.trainer, self._alone)
            compress = 0.0 if spec == "plain" else None
            if compress is None and not specs.needs_thinwire(spec):
                compress = probes.compress_seconds(self.trainer, spec, self._alone)
            self._split_known[spec] = {"compute_seconds": compute, "hook_seconds": compress}
        return self._split_known[spec]


def _merge(courses: list[Course], accounts: list[list[Costs]], warm_up: int) -> dict:
    """One record of a configuration: means over workers, step by step."""
    def mean_steps(name: str) -> list[float]:
        return [sum(values) / len(values)
                for values in zip(*(getattr(course, name) for course in courses))]

    def mean(values: list[float | None]) -> float | None:
        return None if None in values else sum(values) / len(values)

    def a_step(name: str) -> float | None:
        """The mean over workers and the steps after the warm-up."""
        spans = [(getattr(costs[0], name), getattr(costs[-1], name)) for costs in accounts]
        return None if None in spans[0] else mean(
            [(last - first) / (steps - warm_up) for first, last in spans])

    steps = len(courses[0].losses)
    warm_up = min(warm_up, steps - 1)
    return {
        "steps": steps, "warm_up_steps": warm_up,
        "losses": [round(value, 5) for value in mean_steps("losses")],
        "step_seconds": [round(value, 6) for value in mean_steps("seconds")],
        "step_bytes": [round(value) for value in mean_steps("bytes_sent")] or None,
        "accuracies": courses[0].accuracies,
        "arithmetic_bytes": mean([costs[-1].bytes_sent for costs in accounts]),
        "arithmetic_bytes_per_step": a_step("bytes_sent"),
        "row_bytes_per_step": a_step("row_bytes"),
        "compress_seconds": a_step("compress_seconds"),
        "compression_error": mean([costs[-1].compression_error for costs in accounts]),
        "compressor_stats": accounts[0][-1].details,
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
