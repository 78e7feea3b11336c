"""``auto``: the spec by which a model's steps are shortest, on the network that is there."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.utils.dlpack import to_dlpack

from thinwire import _native
from thinwire._arguments import QUALITIES, Rules, used_rules
from thinwire.torch.checkpoint import Row
from thinwire.torch.cores import cores_of_worker
from thinwire.torch.lanes import Lanes, is_finite
from thinwire.torch.model_parameters import REDUCERS_TYPES, ModelParameters
from thinwire.torch.search import PLAIN, Phase, Prospect, Search
from thinwire.torch.step_clock import TimedStep

Link = tuple[float, float]  # bytes a second, seconds a round


class MakeReducer(Protocol):
    def __call__(self, spec: str, link: Link | None = None, *, measures: bool = False) -> _native.Reducer:
        """``spec``: PLAIN for one that compresses nothing. ``measures``: errors, in every step."""


# How codes are combined is not left to `reduce=auto`, which knows nothing of what decoding costs.
_WAYS = ("gather", "scatter")
_SAFE = ("bf16", *(f"casq:{size},reduce={way}" for size in ("bits=4", "bits=2", "rate=1", "rate=0.5") for way in _WAYS))
_FAST = (*_SAFE, *(f"casq:{size},reduce={way}" for size in ("rate=0.25", "rate=0.1") for way in _WAYS))
# By quality: what may be tried, and how much of a gradient's energy may be left in the residual. Of networks for images `casq:bits=2` and
# `casq:rate=0.5` leave 0.17 to 0.31, and train to plain's accuracy within the noise of seeds (README, docs/rate.md); of a language model
# `casq:bits=2` leaves 0.47 to 0.56 (docs/auto.md).
_QUALITIES: dict[str, tuple[tuple[str, ...], float]] = dict(zip(QUALITIES, [((), 0.0), (_SAFE, 0.35), (_FAST, 0.7)], strict=True))
_SAMPLE = 2**21  # elements, on which prospects are tried
_EXCHANGES = 3  # of which the last one counts: the first trains clusters, behind it a lane's memory becomes one piece, and the second touches that

_log = logging.getLogger("thinwire")


def with_plain_types(rules: Rules, parameters: ModelParameters) -> list[tuple[str, str]]:
    """Of types that no compressor takes nothing is compressed, which a rule need not say."""
    pairs = used_rules(rules, parameters.names_in_model)
    return [*pairs, *(rule for rule in parameters.plain_rules if rule[0] not in dict(pairs))]


@dataclass
class Sample:
    """Gradients of some parameters of this worker, before they were averaged."""

    parts: list[torch.Tensor] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)

    def take(self, bucket: torch.Tensor, parameters: list[int], of: ModelParameters) -> None:
        begin = 0
        for index in parameters:
            end = begin + of.elements[index]
            if self._wants(bucket, index, of):
                self.parts.append(bucket[begin:end].detach().to("cpu", copy=True))
                self.parameters.append(index)
            begin = end

    def _wants(self, bucket: torch.Tensor, index: int, of: ModelParameters) -> bool:
        """What would be compressed; of one type; a larger one than fits only if there is nothing else."""
        if of.is_small(index) or bucket.dtype not in REDUCERS_TYPES or (self.parts and bucket.dtype != self.parts[0].dtype):
            return False
        return not self.parts or sum(map(len, self.parts)) + of.elements[index] <= _SAMPLE


class Auto:
    """Which reducer the step at hand goes by. What one has kept as residuals goes over to the next: residuals that it does not keep are
    owed, and added to the next step's gradients."""

    def __init__(
        self,
        quality: str,
        make: MakeReducer,
        parameters: ModelParameters,
        group: dist.ProcessGroup,
        *,
        threads: int,
        fewest_lanes: int,
        has_rules: bool,
    ):
        self.quality = quality
        specs, self._limit = _QUALITIES[quality]
        # Where rules say what travels otherwise, these alone may be best.
        self.specs = ("none", *specs) if has_rules else specs
        self._make, self._parameters = make, parameters
        self._threads, self._fewest_lanes = threads, fewest_lanes
        self._world_size = dist.get_world_size(group)
        self._cores = cores_of_worker(self._world_size)
        self._reducers = {PLAIN: make(PLAIN)}
        self._link: Link | None = None  # once it was measured
        self._is_first = dist.get_rank(group) == 0
        self._past: dict[str, Any] = {}  # counters of reducers that are gone
        self.owed: dict[int, torch.Tensor] = {}  # by parameter
        self._paid: set[int] = set()  # of these, what is on its way in the step at hand
        self._search = Search(self._agree, self._prospects)
        self._lanes: Lanes | None = None
        self._sample = Sample()
        self._watched: list[TimedStep] = []
        self._loss_scale = 1.0

    def start(self, lanes: Lanes) -> None:
        self._lanes = lanes

    @property
    def reducer(self) -> _native.Reducer:
        return self._reducers[self.spec]

    @property
    def spec(self) -> str:
        """Of the step at hand; "plain": all-reduce, as DDP does without a hook."""
        return self._search.spec

    @property
    def is_decided(self) -> bool:
        return self._search.phase is Phase.KEEP

    @property
    def is_plain(self) -> bool:
        """Whether buckets are all-reduced as if thinwire was not there."""
        return self.spec == PLAIN and not self.owed

    def begin_step(self, loss_scale: float) -> None:
        """With a backward pass's first bucket."""
        self._loss_scale = loss_scale
        if self._search.wants_sample:
            self._sample = Sample()

    def see(self, bucket: torch.Tensor, parameters: list[int]) -> None:
        """A dense bucket that is ready, before anybody changes it."""
        if self._search.wants_sample:
            self._sample.take(bucket, parameters, self._parameters)

    def add_owed(self, bucket: torch.Tensor, parameters: list[int]) -> None:
        """To the gradients of a step that does not keep residuals."""
        begin = 0
        for index in parameters:
            end = begin + self._parameters.elements[index]
            if index in self.owed:
                bucket[begin:end] += (self.owed[index] * self._loss_scale).to(bucket.device, bucket.dtype)
                self._paid.add(index)
            begin = end

    def settle(self, committed: bool) -> None:
        """What was added to the step's gradients is owed no more, if the step was committed."""
        if committed:
            for index in self._paid:
                del self.owed[index]
        self._paid.clear()

    def search_on(self, step: TimedStep) -> None:
        """After a step that all workers have begun, and that may have failed; before they begin another one. Afterwards ``reducer`` is the
        next one's."""
        if self._search.counts and step.seconds is not None:
            self._watched.append(step)
        before, was_decided = self.spec, self.is_decided
        self._search.end_step(step.seconds, step.waiting)
        if self.spec != before:
            self._leave(before)
        if self.is_decided and not was_decided:
            self._watched, self._sample = [], Sample()
            self._drop([spec for spec in self._reducers if spec not in (PLAIN, self.spec)])
            if self._is_first:
                _log.info("%s", self)

    def counters(self) -> dict[str, Any]:
        """Of all training, by whatever spec."""
        return _sum([self._past, *(reducer.counters() for reducer in self._reducers.values())])

    def figures(self) -> dict[str, Any]:
        """For stats()."""
        search = self._search
        return {
            "quality": self.quality,
            "phase": search.phase.value,
            "spec": self.spec,
            "searches": search.searches,
            "seconds": dict(search.measured),
            "prospects": [vars(prospect) for prospect in search.prospects],
        }

    def __str__(self) -> str:
        """A few lines: what it found, and what it does."""
        search = self._search
        if search.phase is not Phase.KEEP:
            return f"auto:quality={self.quality} is {search.phase.value}, at the moment by {self.spec}"
        lines = [f"auto:quality={self.quality} has decided for {self.spec}"]
        if PLAIN in search.measured:
            lines.append(f"  {'spec':<36}{'predicted':>10}{'measured':>10}{'bits':>7}{'error':>8}")
            lines.append(f"  {PLAIN:<36}{'-':>10}{_milliseconds(search.measured[PLAIN]):>10}{32:>7}{0:>8}")
        for prospect in search.prospects:
            predicted, measured = _milliseconds(prospect.seconds), _milliseconds(search.measured.get(prospect.spec))
            line = f"  {prospect.spec:<36}{predicted:>10}{measured:>10}{prospect.bits:>7.2f}{prospect.error:>8.3f}"
            lines.append(line + ("" if prospect.is_allowed else "  too lossy"))
        return "\n".join(lines)

    def rows(self) -> list[Row]:
        """What is to be saved, with what is owed among the residuals."""
        return self._rows_of(self.reducer)

    def state(self) -> dict[str, Any]:
        """The same on all workers."""
        assert self._lanes is not None
        return {"spec": self.spec, "decided": self.is_decided, "link": self._link, "lanes": self._lanes.used}

    def load(self, state: dict[str, Any], rows: list[Row]) -> None:
        """What state() and rows() were. Raises StateError or ArgumentError, and changes nothing."""
        assert self._lanes is not None
        spec = state["spec"]
        reducers = {PLAIN: self._make(PLAIN, state["link"])} | {spec: self._make(spec, state["link"])}
        self.owed = _load(reducers[spec], rows)
        self._drop(list(self._reducers))
        self._reducers, self._link = reducers, state["link"]
        self._search = Search(self._agree, self._prospects)
        if state["decided"]:
            self._search.keep(spec)
            self._lanes.use(state["lanes"])
        elif spec != self.spec:
            self._leave(spec)

    def _rows_of(self, reducer: _native.Reducer) -> list[Row]:
        return [
            (name, steps, self.owed[index].numpy() if index in self.owed else residual, memory)
            for index, (name, steps, residual, memory) in enumerate(reducer.state())
        ]

    def _leave(self, spec: str) -> None:
        """For the one that is at work now."""
        if self.spec not in self._reducers:
            self._reducers[self.spec] = self._make(self.spec, self._link)
        before, after = self._reducers[spec], self.reducer
        rows = zip(after.state(), self._rows_of(before), strict=True)
        self.owed = _load(after, [(name, steps, left[2], memory) for (name, steps, _, memory), left in rows])
        before.load_state([(name, steps, residual[:0], memory) for name, steps, residual, memory in before.state()])
        assert self._lanes is not None
        self._lanes.use(next((prospect.lanes for prospect in self._search.prospects if prospect.spec == self.spec), None))

    def _drop(self, specs: list[str]) -> None:
        self._past = _sum([self._past, *(self._reducers.pop(spec).counters() for spec in specs)])

    def _agree(self, numbers: Sequence[float]) -> list[float]:
        assert self._lanes is not None
        return self._lanes.greatest([number if math.isfinite(number) else math.inf for number in numbers])

    def _prospects(self) -> list[Prospect] | None:
        """By an exchange of the sample for each spec. All workers together. None: the backward pass has failed, or the sample is not
        finite, as under a loss scale that is still too large."""
        assert self._lanes is not None
        plain = self._reducers[PLAIN]
        values = torch.cat(self._sample.parts) if self._sample.parts else torch.empty(0)
        failed, empty = self._agree([not self._watched or not is_finite(values), not len(values)])
        if failed:
            return None
        if empty:
            return []  # nothing that would be compressed
        self._lanes.run(plain.measure_link(0))
        self._link = self._as_seen(plain.link, values.element_size())
        found = []
        for spec in self.specs:
            reducer = self._make(spec, self._link, measures=True)
            before: dict[str, Any] = {}
            for _ in range(_EXCHANGES):
                before = reducer.counters()
                self._lanes.run(reducer.reduce(to_dlpack(values.clone()), self._sample.parameters, 0, self._loss_scale))
            found.append(self._prospect(spec, _sum([reducer.counters()], before), len(values)))
        said = iter(self._agree([number for one in found for number in (one.seconds, one.error, one.bits, one.lanes)]))
        agreed = [Prospect(spec, next(said), next(said), next(said), int(next(said))) for spec in self.specs]
        return [replace(prospect, is_allowed=prospect.error <= self._limit) for prospect in agreed]

    def _as_seen(self, probed: Link | None, element_bytes: int) -> Link:
        """The link as a short probe has found it, unless plain sums of the watched steps went faster, from the first bucket to the step's end.
        On a device they go by other ways than lanes do."""
        assert probed is not None
        sent_of_element = 2 * (self._world_size - 1) / self._world_size * element_bytes
        fastest = 0.0
        for step in [] if self._parameters.any_on_device else self._watched:
            if step.ready and step.seconds is not None:
                sent = sent_of_element * sum(elements for _, elements in step.ready)
                fastest = max(fastest, sent / max(step.seconds - step.ready[0][0], 1e-9))
        (seconds_a_byte,) = self._agree([1 / fastest if fastest else math.inf])
        return max(probed[0], 1 / seconds_a_byte), probed[1]

    def _prospect(self, spec: str, spent: dict[str, Any], elements: int) -> Prospect:
        watched = sorted(self._watched, key=lambda step: step.computed)[len(self._watched) // 2]
        link = self._link
        assert link is not None and self._lanes is not None
        idle = max(0.0, self._cores - watched.processor / max(watched.computed, 1e-9))
        codec = spent["encode_seconds"] + spent["decode_seconds"]
        scale = sum(count for _, count in watched.ready) / elements
        lanes = _native.choose_lanes(
            scale * codec, scale * spent["traffic_bytes"] / link[0], buckets=max(1, len(watched.ready)), most=len(self._lanes)
        )
        lanes = max(lanes, self._fewest_lanes)
        seconds = _native.predict_step(
            compute_seconds=watched.computed,
            hidden=min(1.0, idle / self._threads),
            lanes=lanes,
            link=link,
            buckets=[
                (
                    min(ready, watched.computed),
                    spent["encode_seconds"] * count / elements,
                    spent["decode_seconds"] * count / elements,
                    spent["rounds"],
                    spent["traffic_bytes"] * count / elements,
                )
                for ready, count in watched.ready
            ],
        )
        error = spent["error_energy"] / spent["measured_energy"] if spent["measured_energy"] else 0.0
        return Prospect(spec, seconds, error, 8 * spent["payload_bytes"] / elements, lanes)


def _load(reducer: _native.Reducer, rows: list[Row]) -> dict[int, torch.Tensor]:
    """Returns the residuals that the reducer does not keep. Raises StateError, and changes nothing."""
    keeps = reducer.keeps_residuals
    reducer.load_state([
        (name, steps, residual if keeps[index] else residual[:0], memory) for index, (name, steps, residual, memory) in enumerate(rows)
    ])
    return {index: torch.from_numpy(row[2].copy()) for index, row in enumerate(rows) if not keeps[index] and len(row[2])}


def _sum(all_counters: list[dict[str, Any]], without: dict[str, Any] | None = None) -> dict[str, Any]:
    names = {name: None for counters in all_counters for name in counters}
    return {name: sum(counters.get(name, 0) for counters in all_counters) - (without or {}).get(name, 0) for name in names}


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.4g} ms"
