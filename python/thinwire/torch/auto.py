"""``auto``: the spec by which a model's steps are shortest, on the network that is there."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from thinwire import _native
from thinwire._arguments import QUALITIES
from thinwire.torch.checkpoint import Part, Row
from thinwire.torch.lanes import Lanes
from thinwire.torch.model_parameters import ModelParameters
from thinwire.torch.prospects import MakeReducer, Prospects, sum_of
from thinwire.torch.search import PLAIN, Phase, Prospect, Search
from thinwire.torch.step_clock import TimedStep

# How codes are combined is not left to `reduce=auto`, which knows nothing of what decoding costs.
_WAYS = ("gather", "scatter")
_SAFE = ("bf16", *(f"casq:{size},reduce={way}" for size in ("bits=4", "rate=1", "rate=0.5") for way in _WAYS))
_FAST = (*_SAFE, *(f"casq:{size},reduce={way}" for size in ("bits=2", "rate=0.25", "rate=0.1") for way in _WAYS))
# By quality: what may be tried, and how much of a gradient's energy may be left in the residual. Of networks for images `casq:rate=0.5` leaves
# 0.18 to 0.34, of language models 0.004 to 0.03, and both train to within 0.3 points and 1 % of plain's accuracy (docs/rate.md). `casq:bits=2`
# does not everywhere: a language model came 4.5 % behind, of which it left 0.28, where it leaves 0.21 of a network for images that bears it
# (docs/auto.md). One step's sample does not tell these apart.
TRIED: dict[str, tuple[tuple[str, ...], float]] = dict(zip(QUALITIES, [((), 0.0), (_SAFE, 0.3), (_FAST, 0.7)], strict=True))

_log = logging.getLogger("thinwire")


def with_plain_types(rules: list[tuple[str, str]], parameters: ModelParameters) -> list[tuple[str, str]]:
    """Of types that no compressor takes nothing is compressed, which a rule need not say."""
    return [*rules, *(rule for rule in parameters.plain_rules if rule[0] not in dict(rules))]


@dataclass(frozen=True)
class Owed:
    """Of a parameter's residual, from its element ``first`` on, what no reducer keeps any more."""

    first: int
    values: torch.Tensor

    @property
    def part(self) -> Part:
        return self.first, len(self.values)


class Auto:
    """Which reducer the step at hand goes by. What one has kept as residuals goes over to the next: residuals that it does not keep, or
    of which other workers of the host have its parts, are owed, and added to the next step's gradients."""

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
        hosts: list[int],
    ):
        """rules: those that the caller of attach() gave. hosts: of each worker, where several share one; else empty."""
        self.quality = quality
        specs, limit = TRIED[quality]
        self._make, self._parameters = make, parameters
        self._prospects = Prospects(
            specs, limit, make, parameters, dist.get_world_size(group), threads=threads, fewest_lanes=fewest_lanes, rules=rules, hosts=hosts
        )
        # A residual is of its host's mean, of which a worker's gradient is a share.
        self._to_gradient = len(hosts) / len(set(hosts)) if hosts else 1.0
        self._reducers = {PLAIN: make(PLAIN)}
        self._is_first = dist.get_rank(group) == 0
        self._past: dict[str, Any] = {}  # counters of reducers that are gone
        self.owed: dict[int, Owed] = {}  # by parameter
        self._paid: set[int] = set()  # of these, what is on its way in the step at hand
        self._anyone_owes = self._owed_has_changed = False  # workers of a host have different parameters' parts
        self._search = Search(self._prospects.agree, self._ask, self._prospects.probe)
        self._lanes: Lanes | None = None
        self._loss_scale = 1.0

    def start(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._prospects.start(lanes)

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
        return self.spec == PLAIN and not self._anyone_owes

    def begin_step(self, loss_scale: float) -> None:
        """With a backward pass's first bucket. All workers together."""
        self._loss_scale = loss_scale
        if self._owed_has_changed:
            self._anyone_owes, self._owed_has_changed = self._prospects.agree([bool(self.owed)])[0] > 0, False
        if self._search.wants_sample:
            self._prospects.begin_sample()

    def see(self, bucket: torch.Tensor, parameters: list[int]) -> None:
        """A bucket that is ready, before anybody changes it."""
        if self._search.wants_sample:
            self._prospects.see(bucket, parameters)

    def add_owed(self, bucket: torch.Tensor, parameters: list[int]) -> None:
        """To the gradients of a step that does not keep residuals."""
        begin = 0
        for index in parameters:
            end = begin + self._parameters.elements[index]
            if index in self.owed:
                first, count = self.owed[index].part
                values = self.owed[index].values * (self._to_gradient * self._loss_scale)
                bucket[begin + first : begin + first + count] += values.to(bucket.device, bucket.dtype)
                self._paid.add(index)
            begin = end

    def settle(self, committed: bool) -> None:
        """What was added to the step's gradients is owed no more, if the step was committed."""
        if committed:
            for index in self._paid:
                del self.owed[index]
            self._anyone_owes = bool(self.owed)  # every parameter is in a bucket, so that nobody owes anything now
        self._paid.clear()

    def search_on(self, step: TimedStep) -> None:
        """After a step that all workers have begun, and that may have failed; before they begin another one. Afterwards ``reducer`` is the
        next one's."""
        if self._search.counts and step.seconds is not None:
            self._prospects.watch(step)
        before, was_decided = self.spec, self.is_decided
        self._search.end_step(step.seconds, step.waiting)
        if self.spec != before:
            self._leave(before)
        if self.is_decided and not was_decided:
            self._prospects.forget()
            self._drop([spec for spec in self._reducers if spec not in (PLAIN, self.spec)])
            if self._is_first:
                _log.info("%s", self)

    def counters(self) -> dict[str, Any]:
        """Of all training, by whatever spec."""
        return sum_of([self._past, *(reducer.counters() for reducer in self._reducers.values())])

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
            "used_rows": dict(self._prospects.used_rows),
            "rules": dict(self.rules),
        }

    @property
    def rules(self) -> list[tuple[str, str]]:
        """That were found, and hold for the spec of the step at hand."""
        return self._prospects.rules_of(self.spec)

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

    def parts(self) -> list[Part]:
        """Of which the residuals in rows() are."""
        return self._parts_of(self.reducer)

    def state(self) -> dict[str, Any]:
        """The same on all workers."""
        assert self._lanes is not None
        return {
            "spec": self.spec,
            "decided": self.is_decided,
            "link": self._prospects.link,
            "lanes": self._lanes.used,
            "rules": self.rules,
        }

    def load(self, state: dict[str, Any], rows: list[Row], parts: list[Part]) -> None:
        """What state(), rows() and parts() were. Raises StateError or ArgumentError, and changes nothing."""
        assert self._lanes is not None
        spec, link = state["spec"], state["link"]
        reducers = {PLAIN: self._make(PLAIN, link)} | {spec: self._make(spec, link, further_rules=state["rules"])}
        self._owe(_load(reducers[spec], rows, parts))
        self._drop(list(self._reducers))
        self._reducers = reducers
        self._prospects.take_over(link, spec, state["rules"])
        self._search = Search(self._prospects.agree, self._ask, self._prospects.probe)
        if state["decided"]:
            self._search.keep(spec)
            self._lanes.use(state["lanes"])
        elif spec != self.spec:
            self._leave(spec)

    def _rows_of(self, reducer: _native.Reducer) -> list[Row]:
        return [
            (name, steps, self.owed[index].values.numpy() if index in self.owed else residual, memory)
            for index, (name, steps, residual, memory) in enumerate(reducer.state())
        ]

    def _parts_of(self, reducer: _native.Reducer) -> list[Part]:
        return [self.owed[index].part if index in self.owed else part for index, part in enumerate(reducer.parts)]

    def _leave(self, spec: str) -> None:
        """For the one that is at work now."""
        if self.spec not in self._reducers:
            self._reducers[self.spec] = self._make(self.spec, self._prospects.link, further_rules=self.rules)
        before, after = self._reducers[spec], self.reducer
        rows = zip(after.state(), self._rows_of(before), strict=True)
        self._owe(_load(after, [(name, steps, left[2], memory) for (name, steps, _, memory), left in rows], self._parts_of(before)))
        before.load_state([(name, steps, residual[:0], memory) for name, steps, residual, memory in before.state()])
        assert self._lanes is not None
        self._lanes.use(next((prospect.lanes for prospect in self._search.prospects if prospect.spec == self.spec), None))

    def _owe(self, owed: dict[int, Owed]) -> None:
        self.owed, self._owed_has_changed = owed, True

    def _drop(self, specs: list[str]) -> None:
        self._past = sum_of([self._past, *(self._reducers.pop(spec).counters() for spec in specs)])

    def _ask(self) -> list[Prospect] | None:
        found = self._prospects.ask(self._reducers[PLAIN], self._loss_scale)
        if found is not None:  # of an earlier search: their rules may be others now
            self._drop([spec for spec in self._reducers if spec != PLAIN])
        return found


def _load(reducer: _native.Reducer, rows: list[Row], parts: list[Part]) -> dict[int, Owed]:
    """Returns the residuals that the reducer does not keep. Raises StateError, and changes nothing."""
    keeps = [kept and own == part for kept, own, part in zip(reducer.keeps_residuals, reducer.parts, parts, strict=True)]
    reducer.load_state([
        (name, steps, residual if keeps[index] else residual[:0], memory) for index, (name, steps, residual, memory) in enumerate(rows)
    ])
    return {index: Owed(parts[index][0], torch.from_numpy(row[2].copy())) for index, row in enumerate(rows) if not keeps[index] and len(row[2])}


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.4g} ms"
