"""Counters, as figures and as a table for people."""

from typing import Any

PHASES = ("setup", "encode", "wire", "decode")


def figures(counters: dict[str, Any], steps: int) -> dict[str, Any]:
    """This worker's figures; see Attachment.stats()."""
    return {
        "steps": steps,
        "reductions": counters["reductions"],
        "rounds": counters["rounds"],
        "setup_bytes": counters["setup_bytes"],
        "payload_bytes": counters["payload_bytes"],
        "second_bytes": counters["second_bytes"],
        "traffic_bytes": counters["traffic_bytes"],
        "plain_bytes": counters["plain_traffic_bytes"],
        "within_host_bytes": counters["within_host_bytes"],
        "ratio": _ratio(counters["plain_traffic_bytes"], counters["traffic_bytes"]),
        "compressed_share": _ratio(counters["compressed_elements"], counters["elements"]),
        "compression_error": _ratio(counters["error_energy"], counters["measured_energy"]),
        "row_bytes": counters["row_traffic_bytes"],
        "fallbacks": counters["fallbacks"],
        "non_finite": counters["non_finite"],
        "failed_steps": counters["failed_steps"],
        "seconds": {phase: counters[f"{phase}_seconds"] for phase in PHASES},
    }


def scalars(stats: dict[str, Any]) -> dict[str, float]:
    """What stats() knows, phases as ``seconds/encode``."""
    flat = stats | {f"seconds/{phase}": spent for phase, spent in stats["seconds"].items()}
    return {name: value for name, value in flat.items() if isinstance(value, (int, float))}


def table(title: str, stats: dict[str, Any]) -> str:
    """A few aligned lines."""
    seconds = ", ".join(f"{phase} {spent:.3g} s" for phase, spent in stats["seconds"].items())
    rows = [
        ("steps", f"{stats['steps']:,}" + (f", {stats['outer_steps']:,} outer steps" if "outer_steps" in stats else "")),
        ("sent", f"{stats['traffic_bytes'] / 1e6:.4g} MB, plain all-reduce {stats['plain_bytes'] / 1e6:.4g} MB"),
        ("ratio", _text(stats["ratio"])),
        ("compressed", _text(stats["compressed_share"], " of the elements")),
        ("error", _text(stats["compression_error"], " of the energy")),
        ("non-finite", f"{stats['non_finite']:,} of {stats['reductions']:,} buckets, {stats['failed_steps']:,} steps failed"),
        ("time", seconds),
    ]
    if stats["within_host_bytes"]:
        rows.insert(2, ("on its host", f"{stats['within_host_bytes'] / 1e6:.4g} MB, as they are"))
    if "gathered" in stats:
        gathered = stats["gathered"]
        told = f"{gathered['traffic_bytes'] / 1e6:.4g} MB, plain all-gather {gathered['plain_bytes'] / 1e6:.4g} MB"
        rows.insert(2, ("gathered", f"{told}; error {_text(gathered['compression_error'], ' of the energy')}"))
    if stats["row_bytes"] or stats["fallbacks"]:
        told = f"{stats['row_bytes'] / 1e6:.4g} MB of what was sent; {stats['fallbacks']:,} times too dense for it"
        rows.insert(-2, ("rows", told))
    return "\n".join([title, *(f"  {name:<11}{value}" for name, value in rows)])


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _text(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.4g}{unit}"
