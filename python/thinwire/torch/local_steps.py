"""Local steps: workers train alone for some steps, and average what these have changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from thinwire._arguments import Rules, checked_seed, checked_whole
from thinwire._native import ArgumentError, StateError
from thinwire.torch.agreement import checked_duration, kept_terms, make_reducer, open_lanes, passing_terms
from thinwire.torch.averager import Averager
from thinwire.torch.cores import default_threads
from thinwire.torch.handshake import shake_hands
from thinwire.torch.lane_choice import FEWEST
from thinwire.torch.lane_groups import LaneGroups
from thinwire.torch.lanes import BucketJob, is_finite
from thinwire.torch.model_parameters import ModelParameters, trained_parameters
from thinwire.torch.served_models import check_trains_alone
from thinwire.torch.shared_parameters import Outer, SharedParameters, nesterov
from thinwire.torch.turns import Turns, divided

_BUCKET_BYTES = 25 * 2**20  # as DDP's: while one is encoded, another is on the wire


@dataclass
class UnderWay:
    """A fragment's change on its way to the mean."""

    fragment: int
    due: int  # the step after which its mean is used
    jobs: list[BucketJob]
    committed: bool | None = None  # None: its step of the reducer is open


class LocalSteps(Averager):
    """Trains by DiLoCo (Douillard et al. 2023, arXiv 2311.08105) and Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512).

    Every worker trains ``model`` by ``optimizer`` alone, and calls step() after each of its steps. After every ``every`` of them
    the workers average by how much training has moved their parameters, compressed and with error feedback, and an outer
    optimizer, the same on all of them, takes that mean for a gradient: an outer step, after which all go on from the same
    parameters. In the paper's symbols: H = every, Δ = the change.

    All workers construct it, with the same arguments (``timeout`` alone may differ) and the same initial parameters.

    model: the module that is trained, not wrapped in DDP. Parameters that require a gradient are averaged. Buffers, such as
        BatchNorm's statistics, stay each worker's own.
    optimizer: the inner one, of this model's parameters; its state stays each worker's own.
    every: how many steps a worker trains alone.
    outer: makes the outer optimizer of a list of tensors; DiLoCo's by default: Nesterov momentum 0.9, learning rate 0.7.
        ``lambda p: torch.optim.SGD(p, lr=1)`` averages parameters. It is the attribute ``outer``.
    compressor, rules, seed: as for attach(); small parameters that no rule names travel uncompressed.
    fragments: parameters are divided, in their order, into so many parts of about equal size, which are averaged in turns.
    overlap: a mean is used so many steps after its change was sent, which happens meanwhile (the paper's τ); at most
        ``every // fragments``.
    mixing: with an overlap, the share of its own parameters that a worker keeps when it is given the shared ones (the paper's α).
    timeout: seconds that a worker waits for another before it gives up with PeerError. None: as long as the group waits.
    group: the process group of the workers; None: all.

    Where a worker's change is not finite, the outer step is skipped on all workers: nothing is averaged or learnt, and all train
    on, but for a worker whose own parameters are not finite: it goes back to the shared ones.

    On the host it keeps, in float32, the shared parameters, what the outer optimizer keeps, and residuals twice. Raises
    ArgumentError for what cannot work and for what differs between workers, on all of them.
    """

    _called = "LocalSteps"

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        every: int,
        *,
        outer: Outer = nesterov,
        compressor: str = "casq:bits=2",
        rules: Rules = None,
        fragments: int = 1,
        overlap: int = 0,
        mixing: float = 0.5,
        seed: int = 0,
        timeout: float | timedelta | None = None,
        group: dist.ProcessGroup | None = None,
    ):
        if not dist.is_initialized():
            raise ArgumentError("there is no process group; call torch.distributed.init_process_group() first, also for one worker")
        group = group or dist.group.WORLD
        world_size = dist.get_world_size(group)
        terms = error = None
        try:
            groups = LaneGroups(group, checked_duration(timeout, group), None)
            check_trains_alone(model, optimizer)
            parameters = ModelParameters(model)
            self._turns = _checked_turns(every, fragments, len(parameters.names))
            self._overlap = checked_whole("overlap", overlap, 0, self._turns.shortest, f"0 to every // fragments = {self._turns.shortest}")
            self._mixing = _checked_share("mixing", mixing) if overlap else 0.0
            seed = checked_seed(seed)
            reducer = make_reducer(
                parameters,
                group,
                compressor,
                rules,
                small_uncompressed=True,
                seed=seed,
                lanes=FEWEST,
                threads=default_threads(world_size),
                measure_every=1,
                keep_old_residuals=True,  # a change that was not averaged is still in the worker's parameters
            )
            self._shared = SharedParameters([parameter for _, parameter in trained_parameters(model)], outer)
            kept = kept_terms(parameters, reducer, seed) | {
                "every": every, "fragments": fragments, "overlap": overlap, "outer optimizer": type(self.outer).__name__,
            }
            terms = kept | passing_terms(parameters, reducer) | {
                "mixing": self._mixing,
                "outer": repr(self.outer),
                "initial parameters (set one seed, or load one checkpoint)": dict(zip(parameters.names, self._shared.checksums(), strict=True)),
            }
        except Exception as caught:  # the other workers wait for this one's word
            error = caught
        shake_hands(group, terms, error)

        self._model, self._optimizer = model, optimizer
        self._fragments = divided(parameters.elements, fragments)
        self._under_way: UnderWay | None = None
        self._outer_steps = self._failed_steps = 0
        super().__init__(group, parameters, reducer, open_lanes(groups, FEWEST, reducer, world_size), kept, compressor, owner=self)

    @property
    def outer(self) -> Optimizer:
        """The outer optimizer, of the shared parameters; its learning rate may be changed, alike on all workers."""
        return self._shared.outer

    def step(self) -> None:
        """After every step of the inner optimizer, also one that a GradScaler has skipped: all workers count alike.

        Averages when it is time. Raises PeerError where another worker is lost, has failed or is later than the timeout, and
        StateError on any later call.
        """
        if self._under_way is None or not self._has_failed:  # else what is under way says why
            self.check_usable()
        self._steps += 1
        self._arrive()
        fragment = self._turns.after(self._all_steps)
        if fragment is not None:
            self._send(fragment)
            self._arrive()

    @contextmanager
    def shared_parameters(self) -> Iterator[None]:
        """Within it the model holds the shared parameters, the same on all workers: to test it, and to save it. Afterwards it holds
        this worker's own again."""
        own = self._shared.copies_of_own()
        for index in range(len(own)):
            self._shared.give(index, 0)
        try:
            yield
        finally:
            self._shared.put_back(own)

    def stats(self) -> dict[str, Any]:
        """This worker's figures since the beginning of this run: as Attachment.stats(), but

        steps: the inner ones; outer_steps: changes of a fragment that were averaged; failed_steps: those that were skipped, as
        some worker's change was not finite; plain_bytes: what ring all-reduce of every inner step's gradients would have sent.
        """
        figures = super().stats()
        plain = 2 * (self._world_size - 1) / self._world_size * self._steps * self._parameters.bytes
        figures |= {"plain_bytes": plain, "ratio": plain / figures["traffic_bytes"] if figures["traffic_bytes"] else None}
        return figures | {"outer_steps": self._outer_steps, "failed_steps": self._failed_steps}

    @property
    def _has_failed(self) -> bool:
        return self._lanes.failure.error is not None

    def _send(self, fragment: int) -> None:
        self._shared.check_covers(self._model)
        self._reducer.begin_step()
        jobs = []
        for indices in self._buckets(fragment):
            bucket = torch.empty(sum(self._parameters.elements[index] for index in indices), dtype=self._shared.values[indices[0]].dtype)
            for index, change in zip(indices, bucket.split([self._parameters.elements[index] for index in indices]), strict=True):
                self._shared.take_change(index, change)
            jobs.append(BucketJob(self._reducer, not self._parameters.suit_the_reducer(indices), bucket, indices, 1.0))
        self._under_way = UnderWay(fragment, self._all_steps + self._overlap, jobs)
        for place, job in enumerate(jobs):
            if self._world_size > 1:
                self._lanes.submit(place, job)
                continue
            if not is_finite(job.bucket):
                self._reducer.fail_step()
            job.finish()

    def _buckets(self, fragment: int) -> Iterator[list[int]]:
        """Parameters that travel together: of one type, and no more bytes than a bucket's unless a single one has."""
        indices: list[int] = []
        size, previous = 0, None
        for index in sorted(self._fragments[fragment], key=lambda index: str(self._shared.values[index].dtype)):
            value = self._shared.values[index]
            bytes_of_value = value.numel() * value.element_size()
            if indices and (value.dtype != previous or size + bytes_of_value > _BUCKET_BYTES):
                yield indices
                indices, size = [], 0
            indices.append(index)
            size, previous = size + bytes_of_value, value.dtype
        yield indices

    def _arrive(self) -> None:
        """Uses the mean that is due, if one is. A failure need not be waited for."""
        if self._under_way is None or (self._all_steps < self._under_way.due and not self._has_failed):
            return
        self._settle()
        under_way, self._under_way = self._under_way, None
        fragment = self._fragments[under_way.fragment]
        for job in under_way.jobs:
            job.check()
        if under_way.committed:
            self._shared.step()
            for index in fragment:
                self._shared.give(index, self._mixing)
            self._outer_steps += 1
        else:
            if not self._shared.is_finite(fragment):
                self._shared.heal(fragment, self._optimizer)
            self._failed_steps += 1
        self._shared.drop_changes()

    def _settle(self) -> None:
        under_way = self._under_way
        if under_way is not None and under_way.committed is None:
            for job in under_way.jobs:
                job.wait()
            under_way.committed = self._reducer.end_step()

    def _common_state(self) -> dict[str, Any]:
        under_way = self._under_way
        for job in under_way.jobs if under_way else []:
            job.check()
        arriving = under_way and {"fragment": under_way.fragment, "due": under_way.due, "committed": under_way.committed}
        return {"outer": {"shared": self._shared.state(self._parameters.names), "under_way": arriving}}

    def _load_common_state(self, state: dict[str, Any]) -> None:
        outer = state.get("outer")
        if not isinstance(outer, dict) or not {"shared", "under_way"} <= outer.keys():
            raise StateError("this is no state of local steps, as LocalSteps.state_dict() returns")
        self._shared.load(outer["shared"], self._parameters.names)
        self._under_way = outer["under_way"] and UnderWay(jobs=[], **outer["under_way"])


def _checked_turns(every: int, fragments: int, parameters: int) -> Turns:
    every = checked_whole("every", every, 1)
    most = min(every, parameters)
    return Turns(every, checked_whole("fragments", fragments, 1, most, f"1 to {most}, as there are {parameters} parameters and every = {every}"))


def _checked_share(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ArgumentError(f"{name} = {value!r}; allowed: 0 or more, and less than 1")
    return float(value)
