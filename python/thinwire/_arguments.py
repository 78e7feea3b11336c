"""What users may write for rules and layouts, in the form that the native module takes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from thinwire._native import MOST_THREADS, ArgumentError

Rules = Mapping[str, str] | Iterable[tuple[str, str]] | None
LayoutPairs = list[tuple[str, list[int]]]


def rule_pairs(rules: Rules) -> list[tuple[str, str]]:
    """Pairs of glob pattern and spec, in the order given. Raises ArgumentError."""
    pairs = list(rules.items() if isinstance(rules, Mapping) else rules or ())
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise ArgumentError(f"rules map patterns to specs, like {{'*.embed*': 'none'}}; got {pair!r}")
    return pairs


def checked_seed(seed: int) -> int:
    """The seed, if 64 bits can hold it. Raises ArgumentError."""
    if not 0 <= seed < 2**64:
        raise ArgumentError(f"seed = {seed}; allowed: 0 to 2**64 - 1")
    return seed


def checked_threads(threads: int) -> int:
    """The number, if it is one of threads. Raises ArgumentError."""
    if not 1 <= threads <= MOST_THREADS:
        raise ArgumentError(f"threads = {threads}; allowed: 1 to {MOST_THREADS}")
    return threads


def layout_pairs(layout: Sequence[Mapping[str, Any]]) -> LayoutPairs:
    """Pairs of name and shape. Raises ArgumentError unless the parameters lie one behind the other."""
    pairs: LayoutPairs = []
    end = 0
    for entry in layout:
        try:
            name, shape = str(entry["name"]), [int(size) for size in entry["shape"]]
        except (TypeError, KeyError, ValueError):
            raise ArgumentError(
                f"a layout is a list of dicts like {{'name': 'conv1.weight', 'shape': [64, 3, 7, 7]}}; got {entry!r}"
            ) from None
        if (offset := entry.get("offset", end)) != end:
            raise ArgumentError(f"layout: {name!r} begins at {offset}, but what lies before it ends at {end}")
        pairs.append((name, shape))
        end += _elements(shape)
    return pairs


def _elements(shape: Sequence[int]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements
