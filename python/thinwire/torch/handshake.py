"""Workers compare what they are about to do before any of them does it."""

from collections import defaultdict
from typing import Any

import torch.distributed as dist

from thinwire._native import ArgumentError, PeerError

Terms = dict[str, Any]


def shake_hands(group: dist.ProcessGroup, terms: Terms | None, error: Exception | None = None) -> None:
    """Compares ``terms`` over all workers of the group, all of which call this.

    A worker that could not even say its terms passes its ``error``, which is raised again on it and as PeerError on the
    others. Raises ArgumentError on every worker when terms differ, saying which workers want what.
    """
    said: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, (terms, None if error is None else str(error)), group=group)
    if error is not None:
        raise error
    failed = {rank: text for rank, (_, text) in enumerate(said) if text is not None}
    if failed:
        raise PeerError("; ".join(f"rank {rank} could not begin: {text}" for rank, text in failed.items()))
    if differences := _differences([terms_of_rank for terms_of_rank, _ in said]):
        raise ArgumentError("the workers do not agree: " + "; ".join(differences))


def _differences(terms: list[Terms]) -> list[str]:
    """One sentence for each term that is not the same everywhere."""
    sentences = []
    for name in terms[0]:
        ranks_of = defaultdict(list)
        for rank, its_terms in enumerate(terms):
            ranks_of[repr(its_terms.get(name))].append(rank)
        if len(ranks_of) > 1:
            sentences.append(f"{name}: " + _shortened(ranks_of))
    return sentences


def _shortened(ranks_of: dict[str, list[int]]) -> str:
    """Long values are cut down to the part where they begin to differ."""
    values = list(ranks_of)
    start = max(0, _common_prefix(values) - 40)
    return ", ".join(
        f"{'...' if start else ''}{value[start:start + 120]} on rank{'s' if len(ranks) > 1 else ''} "
        + ", ".join(map(str, ranks))
        for value, ranks in ranks_of.items()
    )


def _common_prefix(values: list[str]) -> int:
    if max(map(len, values)) <= 120:
        return 0
    length = 0
    for characters in zip(*values, strict=False):
        if len(set(characters)) > 1:
            break
        length += 1
    return length
