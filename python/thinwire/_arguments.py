"""What users may write for rules and layouts, in the form that the native module takes."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from thinwire._native import MOST_THREADS, ArgumentError, matches

Rules = Mapping[str, str] | Iterable[tuple[str, str]] | None
LayoutPairs = list[tuple[str, list[int]]]

QUALITIES = ("lossless", "safe", "fast")  # of "auto": what a step may lose

_RULES_ARE = "rules map patterns to specs, like {'*.embed*': 'none'}"
_SHOWN_NAMES = 8


def used_rules(rules: Rules, names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of glob pattern and spec, in the order given, each of which matches one of the names. Raises ArgumentError."""
    pairs = _rule_pairs(rules)
    names = list(names)
    for pattern, _ in pairs:
        if not any(matches(pattern, name) for name in names):
            shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
            raise ArgumentError(f"rules: {pattern!r} matches no parameter; there are {len(names)}: {shown}")
    return pairs


def _rule_pairs(rules: Rules) -> list[tuple[str, str]]:
    pairs = rules.items() if isinstance(rules, Mapping) else () if rules is None else rules
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise ArgumentError(f"{_RULES_ARE}; got {rules!r}")
    pairs = list(pairs)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise ArgumentError(f"{_RULES_ARE}; got {pair!r}")
    return pairs


def checked_spec(spec: str) -> str:
    """The spec, if it is text. Raises ArgumentError."""
    if not isinstance(spec, str):
        raise ArgumentError(f"a compressor is a spec like 'casq:bits=2' (see thinwire.compressors()); got {spec!r}")
    return spec


def quality_of(spec: str) -> str | None:
    """Of "auto", which thinwire.torch.attach() takes for a spec, or "auto:quality=..."; None for other specs. Raises ArgumentError."""
    if spec.partition(":")[0] != "auto":
        return None
    quality = "safe" if spec == "auto" else spec.removeprefix("auto:quality=")
    if quality not in QUALITIES:
        raise ArgumentError(f"{spec!r}; allowed: auto, or auto:quality= with one of {', '.join(QUALITIES)}")
    return quality


def checked_seed(seed: int) -> int:
    """The seed, if 64 bits can hold it. Raises ArgumentError."""
    return checked_whole("seed", seed, 0, 2**64 - 1, "0 to 2**64 - 1")


def checked_threads(threads: int) -> int:
    """The number, if it is one of threads. Raises ArgumentError."""
    return checked_whole("threads", threads, 1, MOST_THREADS)


def checked_whole(name: str, value: int, least: int, most: int = 2**31 - 1, allowed: str | None = None) -> int:
    """The value as an int. Raises ArgumentError unless it is a whole number from ``least`` to ``most``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise ArgumentError(f"{name} = {value!r}; allowed: {allowed or f'{least} to {most}'}")
    return number


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
