"""What an attachment and local steps have in common: a worker's reducer and lanes, its figures, its saved states and its end."""

import weakref
from typing import Any, NoReturn, Protocol, TypeVar, overload

import torch.distributed as dist

from thinwire import _native
from thinwire.torch import checkpoint, statistics
from thinwire.torch.all_ranks_state import AllRanksState
from thinwire.torch.lanes import Lanes
from thinwire.torch.model_parameters import TravellingParameters

_Own = TypeVar("_Own", bound="Averager")


class ScalarWriter(Protocol):
    """torch.utils.tensorboard.SummaryWriter, or what writes scalars as it does."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


class Averager:
    """Averages over the workers of a group, until close() or until its owner is gone."""

    _called = "averager"  # in errors

    def __init__(
        self,
        group: dist.ProcessGroup,
        parameters: TravellingParameters,
        reducer: _native.Reducer,
        lanes: Lanes,
        terms: dict[str, Any],
        spec: str,
        owner: object,
    ):
        """``terms``: what must be the same when a state is loaded. ``spec``: as it was given."""
        self._group = group
        self._parameters = parameters
        self._reducer = reducer
        self._lanes = lanes
        self._terms = terms
        self._spec = spec
        self._rank, self._world_size = dist.get_rank(group), dist.get_world_size(group)
        self._steps = 0  # since the beginning of this run
        self._earlier_steps = 0  # of the run whose state was loaded
        self._close_lanes = weakref.finalize(owner, lanes.close)

    @property
    def rank(self) -> int:
        """This worker's, in its process group."""
        return self._rank

    @property
    def compressors(self) -> dict[str, str]:
        """The spec by which each parameter travels."""
        return dict(zip(self._parameters.names, self._reducer.compressors, strict=True))

    @property
    def spec(self) -> str:
        """By which all travels that no rule names and that is not small."""
        return self._spec

    @property
    def _canonical_spec(self) -> str:
        return _native.canonical_spec(self.spec)

    def stats(self) -> dict[str, Any]:
        """This worker's figures since the beginning of this run."""
        return statistics.figures(self._lanes.plain_sums.added_to(self._counters()), self._steps)

    def __str__(self) -> str:
        others = sorted(set(self._reducer.compressors) - {self._canonical_spec})
        specs = ", ".join([self.spec, *others])
        return statistics.table(f"thinwire on {len(self.compressors)} parameters: {specs}", self.stats())

    def write_scalars(self, writer: ScalarWriter, step: int | None = None, *, prefix: str = "thinwire") -> None:
        """Adds what stats() knows to a torch.utils.tensorboard.SummaryWriter, as ``thinwire/ratio``, ``thinwire/seconds/encode``
        and so on. step: None: the steps so far, those of the run whose state was loaded among them."""
        for name, value in statistics.scalars(self.stats()).items():
            writer.add_scalar(f"{prefix}/{name}", value, self._all_steps if step is None else step)

    @overload
    def state_dict(self, *, all_ranks: bool | None = None, to: None = None) -> dict[str, Any]: ...
    @overload
    def state_dict(self, *, all_ranks: bool | None = None, to: int) -> dict[str, Any] | None: ...

    def state_dict(self, *, all_ranks: bool | None = None, to: int | None = None) -> dict[str, Any] | None:
        """What training must remember to continue: residuals, compressors' memories, steps, and what all workers have in common.

        all_ranks=True: all workers call this together, and each gets the state of all, so that one of them can save it; it also
        loads into another number of workers. With to=RANK, of the process group and the same on all workers, that one alone
        gets it; the others get None and hold no more than their own. all_ranks=False: this worker's own, which nobody else can load; every
        worker must save its own. Workers that are not alone must say which. torch.load(weights_only=True) reads both.

        Not during a backward pass. Waits until no lane waits for a peer any more, also after a failure; what failed has left no
        trace. Raises StateError, and ArgumentError for a ``to`` that is no such rank.
        """
        if to is not None:
            self._check_receiver(to, all_ranks)
        if all_ranks is None and self._world_size > 1:
            raise _native.StateError(
                f"each of the {self._world_size} workers has residuals of its own, and a checkpoint of one of them would lose the "
                "others'. Call state_dict(all_ranks=True) on all workers and save what one of them gets (with to=0 rank 0 alone); or save "
                f"state_dict(all_ranks=False) on every worker in a file of its own; or give {self._called}.all_ranks to what saves by itself "
                "(torch.distributed.checkpoint, accelerate)"
            )
        self._settle()
        own = checkpoint.pack(self._rows(), self._terms, self._rank, self._world_size, self._all_steps, self._division())
        if not all_ranks:
            return own | self._common_state()
        states: list[Any] = [None] * self._world_size
        if to is None:
            dist.all_gather_object(states, own, group=self._group)
            return checkpoint.pack_all(states) | self._common_state()
        receives = to == self._rank
        dist.gather_object(own, states if receives else None, dst=dist.get_global_rank(self._group, to), group=self._group)
        return checkpoint.pack_all(states) | self._common_state() if receives else None

    @property
    def all_ranks(self) -> AllRanksState:
        """For frameworks that save what has state_dict() and load_state_dict(), and call them on all workers."""
        return AllRanksState(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from this worker's own state, or from its part of the state of all ranks.

        Residuals of another number of workers, or on other hosts (all_ranks only), are replaced by their mean on every worker. A
        worker that is alone keeps residuals for later, as it sends nothing. Raises StateError, and changes nothing, when the state was saved
        with other parameters, specs, seed, or as another rank.
        """
        self._settle()
        rows, parts, steps = checkpoint.unpack(state, self._terms, self._rank, self._world_size, self._division())
        before = self._common_state()
        self._load_common_state(state)
        try:
            self._load_rows(rows, parts, state)
        except BaseException:
            self._load_common_state(before)
            raise
        self._earlier_steps = steps - self._steps

    def close(self) -> None:
        """Ends the lanes; nothing is averaged afterwards."""
        self._close_lanes()

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} can be neither copied nor pickled; save its state_dict() and load that into a new one")

    def check_usable(self) -> None:
        """Raises StateError after close() or a failure."""
        if not self._close_lanes.alive:
            raise _native.StateError(f"this {self._called} is closed")
        if (error := self._lanes.failure.error) is not None:
            raise _native.StateError(
                f"this {self._called} is of no further use, since it failed ({type(error).__name__}: {error}). Restart from a checkpoint"
            ) from error

    @property
    def _all_steps(self) -> int:
        return self._earlier_steps + self._steps

    @property
    def _workers(self) -> int:
        """Whose states state_dict() gathers."""
        return self._world_size

    def _settle(self) -> None:
        """Returns when no lane is at work and no step of the reducer is open."""
        raise NotImplementedError

    def _division(self) -> checkpoint.Division:
        return checkpoint.Division(self._reducer.hosts, self._reducer.parts)

    def _counters(self) -> dict[str, Any]:
        return self._reducer.counters()

    def _rows(self) -> list[checkpoint.Row]:
        return self._reducer.state()

    def _load_rows(self, rows: list[checkpoint.Row], parts: list[checkpoint.Part], state: dict[str, Any]) -> None:
        """parts: of which the residuals are. Raises StateError, and changes nothing."""
        self._reducer.load_state(rows)

    def _common_state(self) -> dict[str, Any]:
        """What is the same on all workers, for a saved state."""
        return {}

    def _load_common_state(self, state: dict[str, Any]) -> None:
        """From a state that fits otherwise. Raises StateError, and changes nothing."""

    def _check_receiver(self, to: Any, all_ranks: bool | None) -> None:
        if not all_ranks:
            raise _native.ArgumentError(f"to = {to!r} with all_ranks = {all_ranks!r}; allowed: with all_ranks=True, which gathers states")
        if not isinstance(to, int) or isinstance(to, bool) or not 0 <= to < self._workers:
            raise _native.ArgumentError(
                f"to = {to!r}; allowed: a rank of the process group, from 0 to {self._workers - 1}, or None for every worker"
            )
