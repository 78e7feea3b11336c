"""What attach() and LocalSteps check, make and compare with the other workers alike, before they begin."""

from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

import thinwire
from thinwire import _native
from thinwire._arguments import Rules, checked_spec, used_rules
from thinwire._native import ArgumentError
from thinwire.torch.lane_groups import LaneGroups, timeout_of
from thinwire.torch.lanes import Lanes
from thinwire.torch.model_parameters import TravellingParameters
from thinwire.torch.plain_sums import PlainSums


class Scaler(Protocol):
    """torch.amp.GradScaler, or what has its scale."""

    def get_scale(self) -> float: ...


def checked_duration(timeout: float | timedelta | None, group: dist.ProcessGroup) -> timedelta:
    """None: the group's own. Raises ArgumentError."""
    if timeout is None:
        return timeout_of(group)
    try:
        duration = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"timeout = {timeout!r}; allowed: seconds, a timedelta, or None for that of the process group") from None
    if duration <= timedelta(0):
        raise ArgumentError(f"timeout = {timeout}; allowed: more than 0 seconds")
    return duration


def checked_backend(backend: str | None) -> str | None:
    if backend is not None and not isinstance(backend, str):
        raise ArgumentError(f"backend = {backend!r}; allowed: a name like 'gloo', or None for that of the process group")
    return backend


def checked_scaler(scaler: Scaler | None) -> Scaler | None:
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise ArgumentError(f"scaler = {scaler!r}; allowed: a torch.amp.GradScaler, or another object with get_scale()")
    return scaler


def make_reducer(
    parameters: TravellingParameters, group: dist.ProcessGroup, compressor: str, rules: Rules, **options: Any
) -> _native.Reducer:
    """For these parameters of this worker. Raises ArgumentError."""
    reducer = _native.Reducer(
        layout=parameters.layout,
        compressor=checked_spec(compressor),
        rules=parameters.rules_here(used_rules(rules, parameters.names_in_model)),
        rank=dist.get_rank(group),
        world_size=dist.get_world_size(group),
        **options,
    )
    parameters.check_types(reducer.compressors)
    return reducer


def kept_terms(parameters: TravellingParameters, reducer: _native.Reducer, seed: int) -> dict[str, Any]:
    """What must be the same on all workers, and when a state is loaded."""
    return {
        "parameters": dict(parameters.layout),
        "compressors": dict(zip(parameters.names, reducer.compressors, strict=True)),
        "seed": seed,
    }


def passing_terms(parameters: TravellingParameters, reducer: _native.Reducer) -> dict[str, Any]:
    """What must be the same on all workers, and may differ when a state is loaded."""
    return {
        "version": thinwire.__version__,
        "dtypes": parameters.dtypes,
        "description": reducer.description,
        "fingerprint": reducer.fingerprint,
    }


def open_lanes(groups: LaneGroups, count: int, reducer: _native.Reducer, world_size: int) -> Lanes:
    """With the link measured, where it is wanted; none for a worker that is alone. By all workers together."""
    lanes = Lanes(PlainSums(world_size))
    try:
        if world_size > 1:
            lanes.grow(groups, count)
            if reducer.chooses_by_link:
                lanes.run(reducer.measure_link(0))
    except BaseException:
        lanes.close()
        raise
    return lanes
