"""What ``auto`` may take: how long steps would be by which spec, as the model foresees it from watched steps and samples of gradients."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import escape as glob_escape
from statistics import median
from typing import Any, Protocol

import torch
from torch.utils.dlpack import to_dlpack

from thinwire import _native
from thinwire.torch.cores import cores_of_worker
from thinwire.torch.lanes import Lanes, is_finite
from thinwire.torch.model_parameters import TravellingParameters
from thinwire.torch.samples import Sample, UsedRows, gradients_in
from thinwire.torch.search import Prospect
from thinwire.torch.step_clock import ReadyBucket, TimedStep

Link = tuple[float, float]  # bytes a second, seconds a round

_FIRST_EXCHANGES = 2  # do not count: one trains clusters, behind it a lane's memory becomes one piece, and the other touches that
_COUNTED_EXCHANGES = 3  # the first one's errors, and the median of times, as workers that share cores interrupt each other
_PROBES = 2  # messages, of which the quicker counts, as others may meet a busy core
_PROBE_SECONDS = 0.003  # of each, on the link as it was measured
_LEAST_COMPUTED = 0.5  # of the time that a computation took beside plain sums
_WORTH_ROUNDS = 0.9  # of a step: used rows take rounds of their own, which last longer than the model knows where workers share cores


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
        parameters instead of the model's, all of which are compressed, however small, with errors that are measured in every step."""


@dataclass(frozen=True)
class Exchanged:
    """What an exchange of a sample has taken."""

    # Counters, and sending_processor_seconds, those of collectives, and own_elements, of those that this worker has compressed, where workers share hosts a part.
    spent: dict[str, Any]
    elements: int


@dataclass(frozen=True)
class Computation:
    """Of a step in which no gradients are on their way."""

    seconds: float
    ready: list[ReadyBucket]
    hidden: float  # share of other work that does not delay it


class Prospects:
    """Asked once plain steps were watched. Of embeddings a step uses few rows: each spec is tried with such parameters coded as all
    others, and with their used rows travelling alone, which it has where that takes clearly less."""

    def __init__(
        self,
        specs: Sequence[str],
        limit: float,
        make: MakeReducer,
        parameters: TravellingParameters,
        world_size: int,
        *,
        threads: int,
        fewest_lanes: int,
        rules: Sequence[tuple[str, str]],
        hosts: list[int],
    ):
        """limit: of the errors that are allowed. rules: those that the caller of attach() gave. hosts: of each worker, where several share
        one; else empty."""
        self._specs = list(specs)
        self._is_ruled = bool(rules or hosts)
        self._limit = limit
        self._make, self._parameters = make, parameters
        self._world_size, self._cores = world_size, cores_of_worker(world_size)
        self._threads, self._fewest_lanes = threads, fewest_lanes
        self._senders = min(Counter(hosts).values()) if hosts else 1  # through a host's interface at once
        self._coded = [index for index in range(len(parameters.layout)) if not parameters.is_small(index)]
        self._ruled = {index for index, name in enumerate(parameters.names) if any(_native.matches(pattern, name) for pattern, _ in rules)}
        self._lanes: Lanes | None = None
        self.link: Link | None = None  # once it was measured
        self.used_rows: dict[str, float] = {}  # by name of a parameter of which few are used: the share that some worker uses
        self._rules: dict[str, list[tuple[str, str]]] = {}  # by specs by which these rows travel alone
        self.forget()

    def start(self, lanes: Lanes) -> None:
        self._lanes = lanes
        # What rules say, two levels, and connections faster than the backend's may be best by themselves.
        if self._is_ruled or (lanes.are_connected and not self._parameters.any_on_device):
            self._specs.insert(0, "none")

    def agree(self, numbers: Sequence[float]) -> list[float]:
        """The greatest of all workers' numbers, one by one; NaN counts as infinity."""
        assert self._lanes is not None
        return self._lanes.greatest([number if math.isfinite(number) else math.inf for number in numbers])

    def probe(self) -> float:
        """How long a message takes that all workers send together, as a share of what it would on the link as it was measured. None is sent by a
        backend, whose rounds may take longer than what it would tell."""
        assert self._lanes is not None
        if self.link is None or not self._lanes.are_connected:
            return 0.0
        elements = 1 + int(_PROBE_SECONDS * self.link[0] / self._sent_in_ring(1, 4))
        return min(self._lanes.seconds_of_greatest(elements) for _ in range(_PROBES)) / _PROBE_SECONDS

    def forget(self) -> None:
        """What was watched, but not what it told."""
        self._watched: list[TimedStep] = []
        self._knows_rows = False
        self.begin_sample()

    def watch(self, step: TimedStep) -> None:
        """A plain one."""
        self._watched.append(step)

    def begin_sample(self) -> None:
        """Of the step at hand."""
        elements = self._parameters.elements
        self._whole = Sample(sum(elements[index] for index in self._coded if not self._goes_by_rows(index)))
        self._in_rows = Sample(sum(elements[index] for index in self._coded if self._goes_by_rows(index)))
        self._used = UsedRows()

    def see(self, bucket: torch.Tensor, parameters: list[int]) -> None:
        """Of the same step a bucket that is ready, before anybody changes it."""
        for index, gradient in gradients_in(bucket, parameters, self._parameters):
            name, shape = self._parameters.layout[index]
            if not self._knows_rows and len(shape) == 2 and index not in self._ruled:
                self._used.see(gradient, index, shape[0])
            if self._goes_by_rows(index):
                self._in_rows.offer(gradient, name, shape)
            elif not bucket.is_sparse:
                self._whole.offer(gradient, name, shape)

    def rules_of(self, spec: str) -> list[tuple[str, str]]:
        """That were found, and hold where this spec is taken."""
        return self._rules.get(spec, [])

    def take_over(self, link: Link | None, spec: str, rules: list[tuple[str, str]]) -> None:
        """What another run has found."""
        self.link, self.used_rows, self._rules = link, {}, {spec: rules}
        self.forget()

    def ask(self, plain: _native.Reducer, loss_scale: float) -> list[Prospect] | None:
        """By exchanges of the samples for each spec. All workers together, with the same answers. None: the backward pass has failed, or
        the samples are not finite, as under a loss scale that is still too large; or it has only now become known of which gradients few
        rows are used."""
        assert self._lanes is not None
        whole, in_rows = self._whole, self._in_rows
        finite = is_finite(whole.values) and is_finite(in_rows.values)
        (failed,) = self.agree([not self._watched or not finite])
        if failed:
            return None
        if not self._knows_rows:
            shares = self._used.agreed_shares(len(self._parameters.layout), self.agree)
            self.used_rows, self._knows_rows = {self._parameters.layout[index][0]: share for index, share in shares.items()}, True
            if shares:
                return None
        if not len(whole) and not len(in_rows):
            return []  # nothing that would be compressed
        self._lanes.run(plain.measure_link(0))
        element_bytes = (whole if len(whole) else in_rows).values.element_size()
        self.link = self._as_seen(plain.link, element_bytes)
        computation = self._computation(element_bytes)
        found: list[Prospect] = []
        for spec in dict.fromkeys((*self._specs, "none") if len(in_rows) else self._specs):
            coded = self._exchanged(spec, whole, loss_scale)
            if coded is not None and spec in self._specs:
                found.append(self._priced(spec, computation, coded))
            if len(in_rows):
                found.append(self._priced(spec, computation, coded, self._exchanged(spec, in_rows, loss_scale, self._rules_for_rows(spec))))
        said = iter(self.agree([number for one in found for number in (one.seconds, one.error, one.bits, one.lanes)]))
        agreed = [replace(one, seconds=next(said), error=next(said), bits=next(said), lanes=int(next(said))) for one in found]
        best: dict[str, Prospect] = {}  # of each spec's ways
        for one in sorted(agreed, key=lambda one: (one.error > self._limit, one.seconds * (1 if one.by_rows else _WORTH_ROUNDS))):
            best.setdefault(one.spec, replace(one, is_allowed=one.error <= self._limit))
        self._rules = {spec: self._rules_for_rows(spec) for spec, one in best.items() if one.by_rows}
        return list(best.values())

    def _goes_by_rows(self, index: int) -> bool:
        """As far as this search knows."""
        return self._knows_rows and self._parameters.layout[index][0] in self.used_rows

    def _rules_for_rows(self, spec: str) -> list[tuple[str, str]]:
        """Losslessly, or compressed by the spec."""
        return [(glob_escape(name), "s2:mode=exact" if spec == "none" else f"s2:mode=exact/{spec}") for name in self.used_rows]

    def _exchanged(self, spec: str, sample: Sample, loss_scale: float, further_rules: Sequence[tuple[str, str]] = ()) -> Exchanged | None:
        """None where there is nothing to exchange."""
        assert self._lanes is not None
        if not len(sample):
            return None
        values, parameters = sample.values, sample.parameters(self._parameters)
        reducer = self._make(spec, self.link, further_rules=further_rules, sample=parameters)
        spent: list[dict[str, Any]] = []
        sending: list[float] = []
        for _ in range(_FIRST_EXCHANGES + _COUNTED_EXCHANGES):
            before = reducer.counters()
            indices = list(range(len(parameters.layout)))
            sending.append(self._lanes.run(reducer.reduce(to_dlpack(values.clone()), indices, 0, loss_scale)))
            spent.append(sum_of([reducer.counters()], before))
        counted = spent[_FIRST_EXCHANGES:]
        times = {name: median(each[name] for each in counted) for name in ("encode_seconds", "decode_seconds")}
        own_elements = sum(count for _, count in reducer.parts)
        others = {"own_elements": own_elements, "sending_processor_seconds": median(sending[_FIRST_EXCHANGES:])}
        return Exchanged(counted[0] | times | others, len(values))

    def _as_seen(self, probed: Link | None, element_bytes: int) -> Link:
        """The link as a short probe has found it, None for a worker that compresses nothing, unless plain sums of the watched steps went faster:
        a bucket and those behind it, from when it was ready to the step's end. On a device they go by other ways than lanes do. A ring of plain sums leaves a host by one
        worker, at least."""
        fastest = 0.0
        for step in [] if self._parameters.any_on_device else self._watched:
            dense = [bucket for bucket in step.ready if not bucket.is_sparse]
            for first, bucket in enumerate(dense if step.seconds is not None else []):
                sent = self._sent_in_ring(elements_of(dense[first:]), element_bytes)
                fastest = max(fastest, sent / max(step.seconds - bucket.seconds, 1e-9))
        seen = fastest / self._senders
        seen_byte, byte, round_ = self.agree([1 / seen if seen else math.inf, 1 / probed[0] if probed else 0.0, probed[1] if probed else 0.0])
        return 1 / min(seen_byte, byte), round_

    def _sent_in_ring(self, elements: int, element_bytes: int) -> float:
        """Bytes, by a worker, of plain sums."""
        return 2 * (self._world_size - 1) / self._world_size * element_bytes * elements

    def _computation(self, element_bytes: int) -> Computation:
        """Of a watched step: plain sums that were on their way meanwhile have had of the processor what those behind its computation had, by the
        byte, and for as long it stood still where it wants all cores."""
        assert self.link is not None
        watched = sorted(self._watched, key=lambda step: step.computed)[len(self._watched) // 2]
        idle = max(0.0, self._cores - watched.processor / max(watched.computed, 1e-9))
        hidden = min(1.0, idle / self._threads)
        dense = [bucket for bucket in watched.ready if not bucket.is_sparse]
        stood = 0.0
        if len(dense) > 1 and not self._parameters.any_on_device:
            everything = self._sent_in_ring(elements_of(dense), element_bytes)
            could_go = self._senders * self.link[0] * max(0.0, watched.computed - dense[0].seconds)
            beside = min(could_go, self._sent_in_ring(elements_of(dense[:-1]), element_bytes))
            stood = (1 - hidden) * watched.processor_waiting * beside / (everything - beside) / self._cores
        pace = max(_LEAST_COMPUTED, 1 - stood / max(watched.computed, 1e-9))
        ready = [bucket._replace(seconds=pace * min(bucket.seconds, watched.computed)) for bucket in watched.ready]
        return Computation(pace * watched.computed, ready, hidden)

    def _priced(self, spec: str, computation: Computation, whole: Exchanged | None, in_rows: Exchanged | None = None) -> Prospect:
        """By what gradients that are coded whole have taken, and those of which only used rows travel; of these, if they are None, as much
        as of the others."""
        link = self.link
        assert link is not None and self._lanes is not None
        apart = {self._parameters.names.index(name) for name in self.used_rows} if in_rows is not None else set()

        def spent(counter: str, parameters: Sequence[int], *, each: bool = False) -> float:
            """By so many elements as these parameters have; each: however many."""
            total = 0.0
            for part, in_part in ((whole, lambda index: index not in apart), (in_rows, lambda index: index in apart)):
                elements = sum(self._parameters.elements[index] for index in parameters if in_part(index))
                if part is not None and elements:
                    total += part.spent[counter] * (1 if each else elements / part.elements)
            return total

        everything = [index for bucket in computation.ready for index in bucket.parameters]
        codec = spent("encode_seconds", everything) + spent("decode_seconds", everything)
        traffic = spent("traffic_bytes", everything)
        lanes = _native.choose_lanes(codec, traffic / link[0], buckets=max(1, len(computation.ready)), most=len(self._lanes))
        lanes = max(lanes, self._fewest_lanes)
        # As long as codecs, whose time was measured while all workers were at it.
        sending = spent("sending_processor_seconds", everything) / min(1.0, self._cores)
        seconds = _native.predict_step(
            compute_seconds=computation.seconds,
            hidden=computation.hidden,
            sending_seconds=sending / max(traffic, 1.0),
            lanes=lanes,
            link=link,
            buckets=[
                (
                    bucket.seconds,
                    spent("encode_seconds", bucket.parameters),
                    spent("decode_seconds", bucket.parameters),
                    spent("rounds", bucket.parameters, each=True),
                    spent("traffic_bytes", bucket.parameters),
                )
                for bucket in computation.ready
            ],
        )
        bits = 8 * spent("payload_bytes", self._coded) / max(1.0, spent("own_elements", self._coded))
        tried = sum_of([part.spent for part in (whole, in_rows) if part is not None])
        error = tried["error_energy"] / tried["measured_energy"] if tried["measured_energy"] else 0.0
        return Prospect(spec, seconds, error, bits, lanes, by_rows=in_rows is not None)


def elements_of(buckets: list[ReadyBucket]) -> int:
    return sum(bucket.elements for bucket in buckets)


def sum_of(all_counters: list[dict[str, Any]], without: dict[str, Any] | None = None) -> dict[str, Any]:
    names = {name: None for counters in all_counters for name in counters}
    return {name: sum(counters.get(name, 0) for counters in all_counters) - (without or {}).get(name, 0) for name in names}
