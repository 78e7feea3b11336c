"""``auto``: the spec by which a model's steps are shortest, on the network that is there."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import escape as glob_escape
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.utils.dlpack import to_dlpack

from thinwire import _native
from thinwire._arguments import QUALITIES
from thinwire.torch.checkpoint import Row
from thinwire.torch.cores import cores_of_worker
from thinwire.torch.lanes import Lanes, is_finite
from thinwire.torch.model_parameters import ModelParameters, TravellingParameters
from thinwire.torch.samples import Sample, UsedRows, gradients_in
from thinwire.torch.search import PLAIN, Phase, Prospect, Search
from thinwire.torch.step_clock import TimedStep

Link = tuple[float, float]  # bytes a second, seconds a round


class MakeReducer(Protocol):
    def __call__(
        self,
        spec: str,
        link: Link | None = None,
        *,
        further_rules: Sequence[tuple[str, str]] = (),
        sample: TravellingParameters | None = None,
    ) -> _native.Reducer:
        """``spec``: PLAIN for one that compresses nothing. further_rules: behind those that the caller of attach() gave. sample: its
        parameters instead of the model's, with errors that are measured in every step."""


# How codes are combined is not left to `reduce=auto`, which knows nothing of what decoding costs.
_WAYS = ("gather", "scatter")
_SAFE = ("bf16", *(f"casq:{size},reduce={way}" for size in ("bits=4", "bits=2", "rate=1", "rate=0.5") for way in _WAYS))
_FAST = (*_SAFE, *(f"casq:{size},reduce={way}" for size in ("rate=0.25", "rate=0.1") for way in _WAYS))
# By quality: what may be tried, and how much of a gradient's energy may be left in the residual. Of networks for images `casq:bits=2` and
# `casq:rate=0.5` leave 0.17 to 0.31, and train to plain's accuracy within the noise of seeds (README, docs/rate.md); of a language model
# `casq:bits=2` leaves 0.47 to 0.56 (docs/auto.md).
_QUALITIES: dict[str, tuple[tuple[str, ...], float]] = dict(zip(QUALITIES, [((), 0.0), (_SAFE, 0.35), (_FAST, 0.7)], strict=True))
_EXCHANGES = 3  # of which the last one counts: the first trains clusters, behind it a lane's memory becomes one piece, and the second touches that

_log = logging.getLogger("thinwire")


def rule_for_rows(name: str, spec: str) -> tuple[str, str]:
    """By which a parameter of which few rows are used sends these alone: losslessly, or compressed by the spec."""
    return glob_escape(name), "s2:mode=exact" if spec == "none" else f"s2:mode=exact/{spec}"


def with_plain_types(rules: list[tuple[str, str]], parameters: ModelParameters) -> list[tuple[str, str]]:
    """Of types that no compressor takes nothing is compressed, which a rule need not say."""
    return [*rules, *(rule for rule in parameters.plain_rules if rule[0] not in dict(rules))]


@dataclass(frozen=True)
class Exchanged:
    """What an exchange of a sample has taken."""

    spent: dict[str, Any]  # counters
    elements: int


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
        rules: Sequence[tuple[str, str]],
    ):
        """rules: those that the caller of attach() gave."""
        self.quality = quality
        specs, self._limit = _QUALITIES[quality]
        # Where rules say what travels otherwise, these alone may be best.
        self.specs = ("none", *specs) if rules else specs
        self._ruled = {index for index, name in enumerate(parameters.names) if any(_native.matches(pattern, name) for pattern, _ in rules)}
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
        self._rows: dict[int, float] = {}  # parameters of which few rows are used, with the share that some worker uses
        self._rows_of_search = 0  # by which these were found
        self._by_rows: set[str] = set()  # specs by which of these the used rows travel, and no others
        self._forget_samples()
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
            self._forget_samples()

    def see(self, bucket: torch.Tensor, parameters: list[int]) -> None:
        """A bucket that is ready, before anybody changes it."""
        if not self._search.wants_sample:
            return
        for index, gradient in gradients_in(bucket, parameters, self._parameters):
            name, shape = self._parameters.layout[index]
            if not self._knows_rows and len(shape) == 2 and index not in self._ruled:
                self._used.see(gradient, index, shape[0])
            if self._knows_rows and index in self._rows:
                self._in_rows.offer(gradient, name, shape)
            elif not bucket.is_sparse:
                self._whole.offer(gradient, name, shape)

    @property
    def _knows_rows(self) -> bool:
        return self._rows_of_search == self._search.searches

    def _forget_samples(self) -> None:
        apart = set(self._rows) if self._knows_rows else set()
        compressed = {index for index in range(len(self._parameters.elements)) if not self._parameters.is_small(index)}
        self._whole = Sample(sum(self._parameters.elements[index] for index in compressed - apart))
        self._in_rows = Sample(sum(self._parameters.elements[index] for index in apart))
        self._used = UsedRows()

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
            self._watched = []
            self._forget_samples()
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
            "rows": {self._parameters.names[index]: share for index, share in self._rows.items()},
            "rules": dict(self.rules),
        }

    @property
    def rules(self) -> list[tuple[str, str]]:
        """That were found, and hold for the spec of the step at hand."""
        return self._rules_of(self.spec)

    def _rules_of(self, spec: str) -> list[tuple[str, str]]:
        return [rule_for_rows(self._parameters.names[index], spec) for index in self._rows] if spec in self._by_rows else []

    def __str__(self) -> str:
        """A few lines: what it found, and what it does."""
        search = self._search
        if search.phase is not Phase.KEEP:
            return f"auto:quality={self.quality} is {search.phase.value}, at the moment by {self.spec}"
        lines = [f"auto:quality={self.quality} has decided for {self.spec}"]
        lines += [f"  rules: {name!r}: {rule!r}" for name, rule in self.rules]
        if PLAIN in search.measured:
            lines.append(f"  {'spec':<36}{'predicted':>10}{'measured':>10}{'bits':>7}{'error':>8}")
            lines.append(f"  {PLAIN:<36}{'-':>10}{_milliseconds(search.measured[PLAIN]):>10}{32:>7}{0:>8}")
        for prospect in search.prospects:
            predicted, measured = _milliseconds(prospect.seconds), _milliseconds(search.measured.get(prospect.spec))
            line = f"  {prospect.spec:<36}{predicted:>10}{measured:>10}{prospect.bits:>7.2f}{prospect.error:>8.3f}"
            lines.append(line + ("  by rows" if prospect.by_rows else "") + ("" if prospect.is_allowed else "  too lossy"))
        return "\n".join(lines)

    def rows(self) -> list[Row]:
        """What is to be saved, with what is owed among the residuals."""
        return self._rows_of(self.reducer)

    def state(self) -> dict[str, Any]:
        """The same on all workers."""
        assert self._lanes is not None
        return {
            "spec": self.spec,
            "decided": self.is_decided,
            "link": self._link,
            "lanes": self._lanes.used,
            "rows": {self._parameters.names[index]: share for index, share in self._rows.items()} if self.rules else {},
        }

    def load(self, state: dict[str, Any], rows: list[Row]) -> None:
        """What state() and rows() were. Raises StateError or ArgumentError, and changes nothing."""
        assert self._lanes is not None
        spec, link = state["spec"], state["link"]
        further = [rule_for_rows(name, spec) for name in state["rows"]]
        reducers = {PLAIN: self._make(PLAIN, link)} | {spec: self._make(spec, link, further_rules=further)}
        self.owed = _load(reducers[spec], rows)
        self._drop(list(self._reducers))
        self._reducers, self._link = reducers, link
        self._rows = {self._parameters.names.index(name): share for name, share in state["rows"].items()}
        self._by_rows, self._rows_of_search = {spec} if self._rows else set(), 0
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
            self._reducers[self.spec] = self._make(self.spec, self._link, further_rules=self.rules)
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
        """By exchanges of the samples for each spec. All workers together. None: the backward pass has failed, or the samples are not
        finite, as under a loss scale that is still too large; or it has only now become known of which gradients few rows are used."""
        assert self._lanes is not None
        whole, in_rows = self._whole, self._in_rows
        finite = is_finite(whole.values) and is_finite(in_rows.values)
        (failed,) = self._agree([not self._watched or not finite])
        if failed:
            return None
        if not self._knows_rows:
            self._rows, self._by_rows = self._used.agreed_shares(len(self._parameters.layout), self._agree), set()
            self._rows_of_search = self._search.searches
            self._drop([spec for spec in self._reducers if spec != PLAIN])
            if self._rows:
                return None
        if not len(whole) and not len(in_rows):
            return []  # nothing that would be compressed
        plain = self._reducers[PLAIN]
        self._lanes.run(plain.measure_link(0))
        self._link = self._as_seen(plain.link, (whole if len(whole) else in_rows).values.element_size())
        found: list[Prospect] = []
        for spec in dict.fromkeys((*self.specs, "none") if len(in_rows) else self.specs):
            coded = self._exchanged(spec, whole)
            if coded is not None and spec in self.specs:
                found.append(self._prospect(spec, coded))
            if len(in_rows):
                further = [rule_for_rows(self._parameters.names[index], spec) for index in self._rows]
                found.append(self._prospect(spec, coded, self._exchanged(spec, in_rows, further)))
        said = iter(self._agree([number for one in found for number in (one.seconds, one.error, one.bits, one.lanes)]))
        agreed = [replace(one, seconds=next(said), error=next(said), bits=next(said), lanes=int(next(said))) for one in found]
        best: dict[str, Prospect] = {}  # of each spec's two ways
        for one in sorted(agreed, key=lambda one: (one.error > self._limit, one.seconds)):
            best.setdefault(one.spec, replace(one, is_allowed=one.error <= self._limit))
        self._by_rows = {one.spec for one in best.values() if one.by_rows}
        return list(best.values())

    def _exchanged(self, spec: str, sample: Sample, further_rules: Sequence[tuple[str, str]] = ()) -> Exchanged | None:
        """None where there is nothing to exchange."""
        assert self._lanes is not None
        if not len(sample):
            return None
        values, parameters = sample.values, sample.parameters(self._parameters)
        reducer = self._make(spec, self._link, further_rules=further_rules, sample=parameters)
        before: dict[str, Any] = {}
        for _ in range(_EXCHANGES):
            before = reducer.counters()
            indices = list(range(len(parameters.layout)))
            self._lanes.run(reducer.reduce(to_dlpack(values.clone()), indices, 0, self._loss_scale))
        return Exchanged(_sum([reducer.counters()], before), len(values))

    def _as_seen(self, probed: Link | None, element_bytes: int) -> Link:
        """The link as a short probe has found it, unless plain sums of the watched steps went faster, from the first bucket to the step's end.
        On a device they go by other ways than lanes do."""
        assert probed is not None
        sent_of_element = 2 * (self._world_size - 1) / self._world_size * element_bytes
        fastest = 0.0
        for step in [] if self._parameters.any_on_device else self._watched:
            if step.ready and step.seconds is not None:
                sent = sent_of_element * sum(bucket.elements for bucket in step.ready)
                fastest = max(fastest, sent / max(step.seconds - step.ready[0].seconds, 1e-9))
        (seconds_a_byte,) = self._agree([1 / fastest if fastest else math.inf])
        return max(probed[0], 1 / seconds_a_byte), probed[1]

    def _prospect(self, spec: str, whole: Exchanged | None, in_rows: Exchanged | None = None) -> Prospect:
        """By what gradients that are coded whole have taken, and those of which only used rows travel; of these, if they are None, as much
        as of the others."""
        watched = sorted(self._watched, key=lambda step: step.computed)[len(self._watched) // 2]
        link = self._link
        assert link is not None and self._lanes is not None
        apart = self._rows if in_rows is not None else {}

        def spent(counter: str, parameters: Sequence[int], *, each: bool = False) -> float:
            """By so many elements as these parameters have; each: however many."""
            total = 0.0
            for part, in_part in ((whole, lambda index: index not in apart), (in_rows, lambda index: index in apart)):
                elements = sum(self._parameters.elements[index] for index in parameters if in_part(index))
                if part is not None and elements:
                    total += part.spent[counter] * (1 if each else elements / part.elements)
            return total

        everything = [index for bucket in watched.ready for index in bucket.parameters]
        idle = max(0.0, self._cores - watched.processor / max(watched.computed, 1e-9))
        codec = spent("encode_seconds", everything) + spent("decode_seconds", everything)
        traffic = spent("traffic_bytes", everything)
        lanes = _native.choose_lanes(codec, traffic / link[0], buckets=max(1, len(watched.ready)), most=len(self._lanes))
        lanes = max(lanes, self._fewest_lanes)
        seconds = _native.predict_step(
            compute_seconds=watched.computed,
            hidden=min(1.0, idle / self._threads),
            lanes=lanes,
            link=link,
            buckets=[
                (
                    min(bucket.seconds, watched.computed),
                    spent("encode_seconds", bucket.parameters),
                    spent("decode_seconds", bucket.parameters),
                    spent("rounds", bucket.parameters, each=True),
                    spent("traffic_bytes", bucket.parameters),
                )
                for bucket in watched.ready
            ],
        )
        coded = [index for index in range(len(self._parameters.elements)) if not self._parameters.is_small(index)]
        bits = 8 * spent("payload_bytes", coded) / sum(self._parameters.elements[index] for index in coded)
        tried = _sum([part.spent for part in (whole, in_rows) if part is not None])
        error = tried["error_energy"] / tried["measured_energy"] if tried["measured_energy"] else 0.0
        return Prospect(spec, seconds, error, bits, lanes, by_rows=in_rows is not None)


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
