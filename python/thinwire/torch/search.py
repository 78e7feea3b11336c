"""How ``auto`` finds the spec that makes steps shortest: what it does after which step. It knows no tensors and no network."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

PLAIN = "plain"  # all-reduce of DDP's buckets, as without a hook

_SKIPPED = 3  # steps: in the first DDP orders its buckets anew, in the next it allocates them
_WATCHED = 5
_TRIED = 3  # of those that the model likes best
_FINALISTS = 2  # of these, that go on after the first round
_TURNS = (3, 4)  # steps, in the first round and in others, of which the first, in which clusters are trained and memory is touched, does not count
_ROUNDS = 3
_SURELY = 0.75  # of all pairs of steps, one by a spec and a plain one: how often the former is the shorter
_CLOSE = 0.85  # of plain's time: what does not win by more than that, or not surely, goes another round against it
_HOPEFUL = 1.1  # predicted to take no more than this much of plain's time: the model is not exact
_HOPELESS = (1.6, 1.2)  # slower than the best by as much: after the first round, in which plain has no turn, and after others
_WORTHWHILE = 0.95  # of plain's time: what wins less, or loses a round to plain, or two where there was another, may win by noise alone
_WINDOW_STEPS = 20
_WINDOW_SECONDS = 1.0  # the workers compare figures once in a window, which should cost next to nothing
_AGAIN = 0.5  # of a window: where a change has been seen, it is looked for so soon again, so that the search is over within a hundred steps
_CHANGED = 1.3  # times as long, or as short
_LOST = 2.0  # likewise, of the time that workers wait for the wire, where that is felt; and of a message, as short
_FELT = 0.1  # of a step


class Phase(Enum):
    """What is done in the step at hand."""

    WATCH = "watching"
    TRY = "trying"
    KEEP = "decided"


@dataclass(frozen=True)
class Prospect:
    """A spec that may serve, if it is allowed: where its error is within the limit of quality."""

    spec: str
    seconds: float  # of a step, as the model predicts it
    error: float  # |encoded - decoded|^2 / |encoded|^2 of one step
    bits: float  # that a worker sends for an element
    lanes: int = 1  # by which it goes best
    is_allowed: bool = True
    by_rows: bool = False  # of parameters of which few rows are used, these alone travel


class Search:
    """Watches plain steps, tries what the model likes best against plain, in turns, and keeps what is fastest; and looks again when steps
    change lastingly. All workers decide alike, since they decide by what ``agree`` returns: the greatest of all workers' numbers, one by
    one. ``prospects`` is asked when steps have been watched, and returns the same on all workers: None where it has seen no gradients
    that tell anything, and wants to be asked again. ``probe``: how long a message takes, as a share of what it would on the link that
    was measured, as compressed steps hardly tell that a link has become faster; 0 where none is sent."""

    def __init__(
        self,
        agree: Callable[[Sequence[float]], list[float]],
        prospects: Callable[[], list[Prospect] | None],
        probe: Callable[[], float],
    ):
        self._agree, self._ask, self._probe = agree, prospects, probe
        self.prospects: list[Prospect] = []
        self.measured: dict[str, float] = {}  # seconds of a step, by spec
        self.searches = 0  # begun
        self._watch()

    @property
    def wants_sample(self) -> bool:
        """Whether the step at hand should keep its gradients' sample: the prospects will be asked for after it."""
        return self.phase is Phase.WATCH and self._step == _SKIPPED + _WATCHED - 1

    @property
    def counts(self) -> bool:
        """Whether the step at hand is one of those that are watched."""
        return self.phase is Phase.WATCH and self._step >= _SKIPPED

    def end_step(self, seconds: float | None, waiting: float) -> None:
        """After every step of all workers. Afterwards ``spec`` says how the next one goes. seconds: since the end of the step before,
        None if there was none; waiting: of them, for buckets on their way when the backward pass was over."""
        self._step += 1
        match self.phase:
            case Phase.WATCH:
                self._end_watched(seconds)
            case Phase.TRY:
                self._end_tried(seconds)
            case Phase.KEEP:
                self._end_kept(seconds, waiting)

    def _watch(self) -> None:
        self.phase, self.spec = Phase.WATCH, PLAIN
        self._step = 0
        self._seconds: list[float] = []
        self.searches += 1

    def _end_watched(self, seconds: float | None) -> None:
        if self._step > _SKIPPED and seconds is not None:
            self._seconds.append(seconds)
        if self._step < _SKIPPED + _WATCHED:
            return
        self.measured = {PLAIN: self._agree([median(self._seconds) if self._seconds else 0.0])[0]}
        self._taken: dict[str, list[float]] = {PLAIN: [self.measured[PLAIN]]}  # by spec, of the slowest worker
        found = self._ask()
        if found is None:
            self._step -= 1
            return
        self.prospects = sorted(found, key=lambda prospect: prospect.seconds)
        hopeful = [one.spec for one in self.prospects if one.is_allowed and one.seconds < _HOPEFUL * self.measured[PLAIN]]
        self._contenders = [PLAIN, *hopeful[:_TRIED]]
        if len(self._contenders) == 1:
            self.keep(PLAIN)
            return
        self.phase, self._round = Phase.TRY, 0
        self._lost: Counter[str] = Counter()  # rounds in which both had a turn, and plain was no slower
        self._begin_round(self._contenders[1:])  # plain has had its turn

    def _begin_round(self, specs: list[str]) -> None:
        self._in_round: dict[str, list[float]] = {spec: [] for spec in specs}
        self._begin_turn(specs)

    def _begin_turn(self, specs: list[str]) -> None:
        self.spec, self._step = specs[0], 0
        self._to_come = specs[1:]

    def _end_tried(self, seconds: float | None) -> None:
        if self._step > 1:
            self._in_round[self.spec].append(seconds or 0.0)  # of as many steps on all workers
        if self._step < _TURNS[self._round > 0]:
            return
        if self._to_come:
            self._begin_turn(self._to_come)
            return
        self._round += 1
        agreed = iter(self._agree([one for taken in self._in_round.values() for one in taken]))
        now = {spec: [one for _ in taken if (one := next(agreed)) > 0] for spec, taken in self._in_round.items()}
        if PLAIN in now:
            self._lost.update(spec for spec in now if _typical(now[spec]) >= _typical(now[PLAIN]) and spec != PLAIN)
        for spec, taken in now.items():
            self._taken.setdefault(spec, []).extend(taken)
        self.measured |= {spec: _typical(self._taken[spec]) for spec in self._contenders}
        least = min(self.measured[spec] for spec in self._contenders)
        better = sorted((spec for spec in self._contenders if spec != PLAIN), key=self.measured.__getitem__)[:_FINALISTS]
        hopeful = {spec for spec in (PLAIN, *better) if self.measured[spec] <= _HOPELESS[self._round > 1] * least}
        self._contenders = [spec for spec in self._contenders if spec in hopeful]
        if len(self._contenders) > 1 and self._round < _ROUNDS:
            if self._round == 1 and PLAIN in self._contenders:
                self._taken = {}  # plain's were a process's first steps, which may take longer: from now on all have turns
            self._begin_round(self._contenders)
            return
        winner = min(self._contenders, key=self.measured.__getitem__)
        is_worthwhile = self.measured[winner] <= _WORTHWHILE * self.measured[PLAIN]
        if self._round == _ROUNDS and is_worthwhile and not (self.measured[winner] <= _CLOSE * self.measured[PLAIN] and self._is_surely_faster(winner)):
            self._contenders = [PLAIN, winner]
            self._begin_round(self._contenders)
            return
        self.keep(winner if is_worthwhile and self._is_surely_faster(winner) else PLAIN)

    def _is_surely_faster(self, spec: str) -> bool:
        """Than plain: where workers share cores one step may take twice as long as the next."""
        pairs = [one < other for one in self._taken[spec] for other in self._taken[PLAIN]]
        return self._lost[spec] <= max(0, self._round - _ROUNDS) and sum(pairs) >= _SURELY * len(pairs)

    def keep(self, spec: str) -> None:
        """Until steps change. Also for what was decided in an earlier run."""
        self.phase, self.spec = Phase.KEEP, spec
        self._step = 0
        self._window = _WINDOW_STEPS  # until it is known how long a step takes
        self._seconds, self._waits = [], []
        self._reference: tuple[float, float, float] | None = None  # seconds, waiting, and a message, when it was decided
        self._changed = False

    def _end_kept(self, seconds: float | None, waiting: float) -> None:
        if self._step > 1 and seconds is not None:
            self._seconds.append(seconds)
            self._waits.append(waiting)
        if self._step < self._window or not self._seconds:
            return
        message = 0.0 if self.spec == PLAIN else self._probe()
        now_seconds, now_waiting, now_message = self._agree([median(self._seconds), median(self._waits), message])
        self._step, self._seconds, self._waits = 0, [], []
        self._window = max(_WINDOW_STEPS, min(100 * _WINDOW_STEPS, math.ceil(_WINDOW_SECONDS / max(now_seconds, 1e-6))))
        if self._reference is None:
            self._reference = (now_seconds, now_waiting, now_message)
            return
        before, changed = self._changed, self._is_other(now_seconds, now_waiting, now_message)
        self._changed = changed and not before
        if self._changed:
            self._window = math.ceil(_AGAIN * self._window)
        if changed and before:
            self._watch()

    def _is_other(self, seconds: float, waiting: float, message: float) -> bool:
        """Than when it was decided."""
        assert self._reference is not None
        then_seconds, then_waiting, then_message = self._reference
        if message < min(then_message, 1.0) / _LOST:
            return True
        if not 1 / _CHANGED <= seconds / max(then_seconds, 1e-9) <= _CHANGED:
            return True
        felt = abs(waiting - then_waiting) > _FELT * then_seconds
        return felt and not 1 / _LOST <= waiting / max(then_waiting, 1e-9) <= _LOST


def _typical(taken: Sequence[float]) -> float:
    """Of steps that all failed nobody knows."""
    return median(taken) if taken else math.inf
