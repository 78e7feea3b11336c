"""The names of what the job compares: PyTorch's own ways to sum gradients, and thinwire's.

    plain             DDP's own all-reduce, no hook
    bf16, fp16        PyTorch's compression hooks
    powersgd[:rank=R] PyTorch's PowerSGD hook, rank 4 unless said otherwise
    random:ratio=R    random projections with error feedback, of K/R directions of filters of K entries
    anything else     a thinwire specification, such as casq:bits=2 or casq:bits=1,feedback=off;
                      "thinwire:bf16" is thinwire's bf16, where "bf16" is PyTorch's, and
                      "thinwire:powersgd:rank=2" thinwire's PowerSGD;
                      "s2+none" is s2 for embeddings and none for all else
    momentum:SPEC     thinwire's SPEC of every worker's own momentum, which the optimizer has no more (momentum correction)
    warm-up:N/SPEC    casq:rate=1 in the first N steps, then thinwire's SPEC; of that also with momentum:
    hosts:SPEC        thinwire's SPEC on two levels, where workers share hosts: hosts="auto"
    fsdp/SPEC         no DDP but FSDP2, every worker with a shard: fsdp/plain as it is, else gradients by thinwire's SPEC;
                      fsdp:gathers=G/SPEC gathers parameters by G
    auto, auto:quality=Q
                      what thinwire finds to be fastest, within limits of quality: lossless, safe or fast
    local:every=H/SPEC
                      no DDP but LocalSteps, which average every H steps by thinwire's SPEC; also with fragments=, overlap=,
                      mixing=, and of the outer optimizer rate= and momentum=; muon=R trains the hidden matrices of the
                      language model by Muon at learning rate R
"""

from __future__ import annotations

import re

HALVES = ("bf16", "fp16")
_POWERSGD = re.compile(r"powersgd(?::rank=([1-9]\d*))?")
_POWERSGD_RANK = 4
_RANDOM = re.compile(r"random:ratio=(\d+(?:\.\d+)?)")
_THINWIRE = "thinwire:"
_HOSTS = "hosts:"
_CORRECTED = "momentum:"
_WARMED_UP = re.compile(r"warm-up:([1-9]\d*)/(.*)")
_LOCAL = re.compile(r"local:([^/]*)/(.*)")
_SHARDED = re.compile(r"fsdp(?::gathers=([^/]*))?/(.*)")
_WITH_MOMENTUM = ("dgc", "signum")
_LOCAL_OPTIONS = {"every": int, "fragments": int, "overlap": int, "mixing": float, "rate": float, "momentum": float, "muon": float}


def powersgd_rank(spec: str) -> int | None:
    """The rank that `spec` asks PowerSGD for; None if it names something else."""
    match = _POWERSGD.fullmatch(spec)
    return int(match[1] or _POWERSGD_RANK) if match else None


def random_ratio(spec: str) -> float | None:
    """The ratio that `spec` asks random projections for; None if it names something else."""
    match = _RANDOM.fullmatch(spec)
    return float(match[1]) if match and float(match[1]) >= 1 else None


def split_specs(text: str) -> list[str]:
    """Specifications from a list separated by commas, semicolons or spaces.

    A comma before `key=value` belongs to the specification before it:
    "plain,casq:bits=1,feedback=off,bf16" names three.
    """
    specs: list[str] = []
    for separator, word in re.findall(r"([,;\s]*)([^,;\s]+)", text):
        continues = separator.strip() == "," and re.match(r"[^:/]*=", word)
        if continues and specs:
            specs[-1] += "," + word
        else:
            specs.append(word)
    return list(dict.fromkeys(specs))


def needs_thinwire(spec: str) -> bool:
    """Whether `spec` is one of thinwire's, not a hook of PyTorch's or of this benchmark."""
    return spec not in ("plain", "fsdp/plain", *HALVES) and powersgd_rank(spec) is None and random_ratio(spec) is None


def local_options(spec: str) -> dict[str, int | float] | None:
    """What `spec` sets of local steps; None if it names something else. ValueError names what nobody knows."""
    match = _LOCAL.fullmatch(spec)
    if match is None:
        return None
    pairs = dict(pair.partition("=")[::2] for pair in match[1].split(","))
    try:
        if "every" in pairs:
            return {name: _LOCAL_OPTIONS[name](value) for name, value in pairs.items()}
    except (KeyError, ValueError):
        pass
    raise ValueError(f"{spec!r}: expected local:every=H/SPEC, also with numbers for any of {', '.join(list(_LOCAL_OPTIONS)[1:])}")


def sharded_gathers(spec: str) -> str | None:
    """By what FSDP2 gathers parameters, "plain" as they are; None if `spec` names something else than FSDP2."""
    match = _SHARDED.fullmatch(spec)
    return match and (match[1] or "plain")


def corrects_momentum(spec: str) -> bool:
    """Whether every worker accumulates its own momentum before compression."""
    return after_warm_up(spec).startswith(_CORRECTED)


def warm_up_steps(spec: str) -> int:
    """The first steps, which have another compressor than the others."""
    match = _WARMED_UP.fullmatch(spec)
    return int(match[1]) if match else 0


def after_warm_up(spec: str) -> str:
    match = _WARMED_UP.fullmatch(spec)
    return match[2] if match else spec


def on_two_levels(spec: str) -> bool:
    return after_warm_up(spec).removeprefix(_CORRECTED).startswith(_HOSTS)


def thinwire_specs(spec: str) -> tuple[str | None, str]:
    """Of embeddings, where they have one of their own, and of all else."""
    inner = _LOCAL.fullmatch(spec) or _SHARDED.fullmatch(spec) or _WARMED_UP.fullmatch(spec)
    first, joined, rest = (inner[2] if inner else spec).removeprefix(_CORRECTED).removeprefix(_HOSTS).removeprefix(_THINWIRE).partition("+")
    return (first, rest) if joined else (None, first)


def is_auto(spec: str) -> bool:
    return thinwire_specs(spec)[1].partition(":")[0] == "auto"


def has_momentum(spec: str) -> bool:
    """Whether what arrives is made of every worker's own momentum, beside which the optimizer must have none."""
    return any(part.partition(":")[0] in _WITH_MOMENTUM for part in thinwire_specs(spec) if part)


def check(specs: list[str]) -> None:
    """ValueError for a specification that nobody serves, before any process is started."""
    if not specs:
        raise ValueError("no compressor named")
    for spec in specs:
        name = spec.partition(":")[0]
        if name == "powersgd" and needs_thinwire(spec):
            raise ValueError(f"{spec!r}: expected powersgd or powersgd:rank=R with R >= 1")
        if name == "random" and needs_thinwire(spec):
            raise ValueError(f"{spec!r}: expected random:ratio=R with R >= 1")
        if spec.startswith("local") and local_options(spec) is None:
            raise ValueError(f"{spec!r}: expected local:every=H/SPEC")
        if corrects_momentum(spec) and has_momentum(spec):
            raise ValueError(f"{spec!r}: the compressor has the momentum already; expected another one, or no momentum:")
    ours = [spec for spec in specs if needs_thinwire(spec)]
    if not ours:
        return
    try:
        import thinwire
        from thinwire._arguments import quality_of
    except ImportError as error:
        raise ValueError(f"{', '.join(ours)}: thinwire's Python package is missing ({error}); "
                         "./run builds it, and so does pip install .") from error
    for spec in ours:
        try:
            gathers = sharded_gathers(spec)
            for each in filter(None, [*thinwire_specs(spec), None if gathers == "plain" else gathers]):
                if local_options(spec) is not None or quality_of(each) is None:
                    thinwire.canonical_spec(each)
        except thinwire.Error as error:
            raise ValueError(f"{spec!r}: {error}") from error
