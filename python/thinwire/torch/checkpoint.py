"""What an attachment remembers, as a dict of tensors that torch.save() stores and torch.load(weights_only=True) reads."""

import math
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from thinwire._native import StateError

FORMAT = 1

State = dict[str, Any]
Row = tuple[str, int, Any, bytes]  # as the native module has it: name, steps, residual, memory
Part = tuple[int, int]  # of a parameter: its first element, and how many


@dataclass
class Division:
    """How workers that share hosts divide the parameters among themselves."""

    hosts: list[int]  # of each worker; empty where they share none
    parts: list[Part]  # of each parameter what this worker compresses


def pack(rows: list[Row], terms: dict[str, Any], rank: int, world_size: int, steps: int, division: Division) -> State:
    """One worker's state. ``terms``: what must be the same when it is loaded."""
    return {
        "format": FORMAT,
        "rank": rank,
        "world_size": world_size,
        "steps": steps,
        "hosts": division.hosts,
        "terms": terms,
        "parameters": {
            name: {
                "steps": its_steps,
                "residual": torch.from_numpy(numpy.asarray(residual)),
                "memory": torch.frombuffer(bytearray(memory), dtype=torch.uint8) if memory else torch.empty(0, dtype=torch.uint8),
                "part": part,
            }
            for (name, its_steps, residual, memory), part in zip(rows, division.parts, strict=True)
        },
    }


def pack_all(states: list[State]) -> State:
    """The states of all workers, in rank order."""
    return {"format": FORMAT, "world_size": len(states), "ranks": states}


def unpack(state: State, terms: dict[str, Any], rank: int, world_size: int, division: Division) -> tuple[list[Row], list[Part], int]:
    """This worker's rows, of what part the residual of each is, and steps, from its own state or from that of all workers. Raises
    StateError."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise StateError(f"this is no state of an attachment in format {FORMAT}")
    if "ranks" in state:
        _check_terms(state["ranks"][0]["terms"], terms)
        state = _share(state["ranks"], rank, world_size, division)
    else:
        _check_place(state, rank, world_size, division.hosts)
        _check_terms(state["terms"], terms)
    saved_parts = [tuple(saved["part"]) for saved in state["parameters"].values()]
    return [_row(name, saved) for name, saved in state["parameters"].items()], saved_parts, state["steps"]


def _check_place(state: State, rank: int, world_size: int, hosts: list[int]) -> None:
    """Of one worker's state."""
    if state["world_size"] != world_size:
        raise StateError(
            f"one worker's state of {state['world_size']} cannot serve {world_size} workers; "
            "save state_dict(all_ranks=True) to change their number"
        )
    if state["rank"] != rank:
        raise StateError(f"this is the state of rank {state['rank']}, and this is rank {rank}; each loads its own")
    if state["hosts"] != hosts:
        raise StateError(
            f"one worker's state where hosts were {_said(state['hosts'])} cannot serve workers whose hosts are {_said(hosts)}; "
            "save state_dict(all_ranks=True) to change them"
        )


def _said(hosts: list[int]) -> str:
    return str(hosts) if hosts else "flat"


def _share(states: list[State], rank: int, world_size: int, division: Division) -> State:
    """This worker's part: its own state or, if the number of workers or their hosts have changed, what all have in common and the
    mean of their residuals. The mean over the new workers of what is still to be sent is then what it was over the old ones.

    Of each parameter's memories all get the longest: the others lack what one worker alone was learning. Where parameters are, or
    were, divided among the workers of a host, compressors begin anew."""
    saved_hosts = states[0]["hosts"]
    if len(states) == world_size and saved_hosts == division.hosts:
        return states[rank]
    parameters = {}
    for (name, saved), (first, count) in zip(states[0]["parameters"].items(), division.parts, strict=True):
        of_all = [state["parameters"][name] for state in states]
        if saved_hosts:
            residual = _joined(of_all, math.prod(states[0]["terms"]["parameters"][name]))
        else:
            residual = _mean([one["residual"] for one in of_all])
        if division.hosts:
            residual = residual[first : first + count]
        memory = max((one["memory"] for one in of_all), key=torch.Tensor.numel)
        begun = {"steps": 0, "memory": memory[:0]} if saved_hosts or division.hosts else {"memory": memory}
        parameters[name] = {**saved, "residual": residual, "part": (first, count), **begun}
    return {**states[0], "parameters": parameters}


def _joined(of_all: list[dict[str, Any]], elements: int) -> torch.Tensor:
    """The mean of a residual of which every worker has a part, over those that have it."""
    total, owners = torch.zeros(elements, dtype=torch.float64), torch.zeros(elements)
    for one in of_all:
        first, count = one["part"]
        if residual := one["residual"].numel():
            total[first : first + residual] += one["residual"]
        owners[first : first + count] += 1
    return (total / owners).float() if any(one["residual"].numel() for one in of_all) else of_all[0]["residual"]


def _mean(residuals: list[torch.Tensor]) -> torch.Tensor:
    """An empty residual is one of zeros."""
    present = [residual for residual in residuals if residual.numel()]
    if not present:
        return residuals[0]
    total = torch.zeros_like(present[0], dtype=torch.float64)
    for residual in present:
        total += residual
    return (total / len(residuals)).float()


def _check_terms(saved: dict[str, Any], current: dict[str, Any]) -> None:
    for name, value in current.items():
        if saved.get(name) != value:
            raise StateError(f"the state was saved with another {name}: {_difference(saved.get(name), value)}")


def _difference(saved: Any, current: Any) -> str:
    """Of dicts, the first entry that differs."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in [*saved, *current]:
            if saved.get(key) != current.get(key):
                return f"{key!r} had {saved.get(key)!r}, and has {current.get(key)!r} now"
        return f"the order was {list(saved)}, and is {list(current)} now"
    return f"it was {saved!r}, and is {current!r} now"


def _row(name: str, saved: dict[str, Any]) -> Row:
    return name, saved["steps"], saved["residual"].contiguous().numpy(), saved["memory"].numpy().tobytes()
