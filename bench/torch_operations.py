"""thinwire's codecs beside the same compressors in PyTorch's CPU operations, as hooks that are written in Python have them.

    .venv/bin/python -m bench.torch_operations [--elements N] [--repetitions R] [--out FILE.json]

One core for each, in turns, the median counts. What PyTorch's operations produce here is what such hooks send: bytes for numbers of a few bits,
since packing them would take more operations; thinwire packs. Both encode without error feedback. thinwire's rates are those of `thinwire
bench`, whose decoding is of two workers' codes to their mean, which counts as two gradients.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

_ROOT = Path(__file__).resolve().parents[1]
_CHUNK = 32768
Payload = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Operations:
    """spec: thinwire's. encode: from a gradient of a multiple of 32,768 entries. decode: of its payload to a gradient of that shape."""

    spec: str
    encode: Callable[[torch.Tensor], Payload]
    decode: Callable[[Payload, torch.Tensor], torch.Tensor]


def _rounded_at_random(scaled: torch.Tensor) -> torch.Tensor:
    lower = scaled.floor()
    return lower + (torch.rand_like(scaled) < scaled - lower)


def _qsgd(x: torch.Tensor, levels: int = 7) -> Payload:
    rows = x.view(-1, 512)
    norms = rows.abs().amax(1, keepdim=True)
    return (_rounded_at_random(rows.abs() * (levels / norms)) * rows.sign()).to(torch.int8), norms / levels


def _by_rows(payload: Payload, like: torch.Tensor) -> torch.Tensor:
    codes, units = payload
    return (codes.to(torch.float32) * units).view_as(like)


def _terngrad(x: torch.Tensor) -> Payload:
    rows = x.view(-1, _CHUNK)
    bound = 2.5 * rows.std(1, keepdim=True)
    clipped = torch.minimum(torch.maximum(rows, -bound), bound)
    scale = clipped.abs().amax(1, keepdim=True)
    return ((torch.rand_like(clipped) * scale < clipped.abs()) * clipped.sign()).to(torch.int8), scale


def _natural(x: torch.Tensor) -> Payload:
    mantissa, exponent = torch.frexp(x)
    up = torch.rand_like(x) < 2 * mantissa.abs() - 1
    return (exponent + up).to(torch.int8), x.sign().to(torch.int8)


def _from_natural(payload: Payload, like: torch.Tensor) -> torch.Tensor:
    exponents, signs = payload
    return torch.ldexp(signs.to(torch.float32), exponents.to(torch.float32) - 1)


def _nuqsgd(x: torch.Tensor, levels: int = 7) -> Payload:
    rows = x.view(-1, 512)
    norms = rows.norm(dim=1, keepdim=True)
    share = rows.abs() / norms
    mantissa, exponent = torch.frexp(share)
    least = 2.0 ** (1 - levels)
    up = torch.rand_like(share) < torch.where(share < least, share / least, 2 * mantissa - 1)
    number = torch.where(share < least, up, (exponent + (levels - 1) + up).clamp(max=levels))
    return (number * rows.sign()).to(torch.int8), norms


def _from_nuqsgd(payload: Payload, like: torch.Tensor, levels: int = 7) -> torch.Tensor:
    numbers, norms = payload
    number = numbers.to(torch.float32)
    return (torch.where(number == 0, 0, torch.exp2(number.abs() - levels)) * number.sign() * norms).view_as(like)


def _dorefa(x: torch.Tensor, steps: int = 15) -> Payload:
    rows = x.view(-1, _CHUNK)
    largest = rows.abs().amax(1, keepdim=True)
    return _rounded_at_random((rows / (2 * largest) + 0.5) * steps).to(torch.uint8), largest


def _from_dorefa(payload: Payload, like: torch.Tensor, steps: int = 15) -> torch.Tensor:
    codes, largest = payload
    return ((codes.to(torch.float32) / steps - 0.5) * (2 * largest)).view_as(like)


def _int8(x: torch.Tensor) -> Payload:
    rows = x.view(-1, 512)
    units = rows.abs().amax(1, keepdim=True) / 127
    return (rows / units).round().to(torch.int8), units


def _fp8(x: torch.Tensor) -> Payload:
    rows = x.view(-1, _CHUNK)
    units = rows.abs().amax(1, keepdim=True) / 448
    return (rows / units).to(torch.float8_e4m3fn), units


_FP4 = torch.tensor([-6.0, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6])
_FP4_BOUNDS = (_FP4[1:] + _FP4[:-1]) / 2


def _mxfp4(x: torch.Tensor) -> Payload:
    rows = x.view(-1, 32)
    units = torch.exp2(torch.frexp(rows.abs().amax(1, keepdim=True))[1] - 3.0)
    return torch.bucketize(rows / units, _FP4_BOUNDS).to(torch.uint8), units


def _from_mxfp4(payload: Payload, like: torch.Tensor) -> torch.Tensor:
    codes, units = payload
    return (_FP4[codes.to(torch.int32)] * units).view_as(like)


def _efsign(x: torch.Tensor) -> Payload:
    rows = x.view(-1, _CHUNK)
    return (rows >= 0), rows.abs().mean(1, keepdim=True)


def _from_efsign(payload: Payload, like: torch.Tensor) -> torch.Tensor:
    positive, scale = payload
    return torch.where(positive, scale, -scale).view_as(like)


def _onebit(x: torch.Tensor) -> Payload:
    rows = x.view(-1, _CHUNK)
    negative = rows < 0
    count = negative.sum(1, keepdim=True)
    below = torch.where(negative, rows, 0).sum(1, keepdim=True)
    return negative, below / count.clamp(min=1), (rows.sum(1, keepdim=True) - below) / (_CHUNK - count).clamp(min=1)


def _from_onebit(payload: Payload, like: torch.Tensor) -> torch.Tensor:
    negative, below, above = payload
    return torch.where(negative, below, above).view_as(like)


def _topk(x: torch.Tensor) -> Payload:
    places = torch.topk(x.abs(), x.numel() // 100, sorted=False).indices
    return places.to(torch.int32), x[places]


def _randomk(x: torch.Tensor) -> Payload:
    places = torch.randint(x.numel(), (x.numel() // 100,))
    return places.to(torch.int32), x[places]


def _threshold(x: torch.Tensor, least: float = 0.01) -> Payload:
    places = (x.abs() >= least).nonzero().view(-1)
    return places.to(torch.int32), x[places]


def _wangni(x: torch.Tensor) -> Payload:
    probabilities = (x.abs() * (0.01 * x.numel() / x.abs().sum())).clamp(max=1)
    places = (torch.rand_like(x) < probabilities).nonzero().view(-1)
    return places.to(torch.int32), x[places] / probabilities[places]


def _from_places(payload: Payload, like: torch.Tensor) -> torch.Tensor:
    places, values = payload
    return torch.zeros_like(like).index_copy_(0, places.to(torch.int64), values)


_SIGNS = torch.randint(2, (_CHUNK,), generator=torch.Generator().manual_seed(1)).to(torch.float32) * 2 - 1
_NORMAL_BOUNDS = torch.tensor([-0.9816, 0.0, 0.9816])
_NORMAL_LEVELS = torch.tensor([-1.5104, -0.4528, 0.4528, 1.5104])


def _hadamard(rows: torch.Tensor) -> torch.Tensor:
    width = 1
    while width < rows.shape[1]:
        pairs = rows.view(rows.shape[0], -1, 2, width)
        rows = torch.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2).view_as(rows)
        width *= 2
    return rows


def _eden(x: torch.Tensor) -> Payload:
    rows = x.view(-1, _CHUNK)
    rotated = _hadamard(rows * _SIGNS)
    normal = rotated * (math.sqrt(_CHUNK) / rotated.norm(dim=1, keepdim=True))
    codes = torch.bucketize(normal, _NORMAL_BOUNDS).to(torch.uint8)
    return codes, rows.norm(dim=1, keepdim=True).square() / (_NORMAL_LEVELS[codes.to(torch.int32)] * rotated).sum(1, keepdim=True)


def _from_eden(payload: Payload, like: torch.Tensor) -> torch.Tensor:
    codes, scales = payload
    return (_hadamard(_NORMAL_LEVELS[codes.to(torch.int32)] * scales) * _SIGNS).view_as(like)


ALL = (
    Operations("qsgd:bits=4,reduce=gather", _qsgd, _by_rows),
    Operations("terngrad", _terngrad, _by_rows),
    Operations("natural", _natural, _from_natural),
    Operations("nuqsgd:bits=4", _nuqsgd, _from_nuqsgd),
    Operations("dorefa:bits=4", _dorefa, _from_dorefa),
    Operations("int:bits=8", _int8, _by_rows),
    Operations("fp8", _fp8, _by_rows),
    Operations("mxfp4", _mxfp4, _from_mxfp4),
    Operations("efsign", _efsign, _from_efsign),
    Operations("onebit", _onebit, _from_onebit),
    Operations("eden:bits=2", _eden, _from_eden),
    Operations("topk:density=0.01", _topk, _from_places),
    Operations("randomk:density=0.01", _randomk, _from_places),
    Operations("threshold:least=0.01", _threshold, _from_places),
    Operations("wangni:density=0.01", _wangni, _from_places),
)


def rates(operations: Operations, gradient: torch.Tensor, repetitions: int) -> tuple[float, float]:
    """GB of gradient a second, encoding and decoding; medians, after a first pass."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(repetitions + 1):
        begin = time.perf_counter()
        payload = operations.encode(gradient)
        encoded = time.perf_counter()
        operations.decode(payload, gradient)
        taken[0].append(encoded - begin)
        taken[1].append(time.perf_counter() - encoded)
    encode, decode = (4e-9 * gradient.numel() / statistics.median(seconds[1:]) for seconds in taken)
    return encode, decode


def thinwires(spec: str, elements: int, repetitions: int) -> dict:
    command = [_ROOT / "build/thinwire", "bench", "--json", "--compressor", spec, "--elements", str(elements), "--repetitions", str(repetitions)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found["rows"][0] | {"read_gbs": found["read_gbs"]}


def measured(operations: Operations, gradient: torch.Tensor, repetitions: int) -> dict:
    encode, decode = rates(operations, gradient, repetitions)
    ours = thinwires(operations.spec, gradient.numel(), repetitions)
    return {
        "spec": operations.spec, "read_gbs": ours["read_gbs"], "torch_encode_gbs": encode, "torch_decode_gbs": decode,
        "encode_gbs": ours["encode_gbs"], "decode_gbs": ours["decode_gbs"],
    }  # fmt: skip


def ratio(row: dict) -> float:
    """Of the seconds that encoding and decoding take together."""
    return (1 / row["torch_encode_gbs"] + 1 / row["torch_decode_gbs"]) / (1 / row["encode_gbs"] + 1 / row["decode_gbs"])


def table(rows: list[dict]) -> str:
    lines = [f"{'GB of float32 a second, one core':32} {'encode':>8} {'in torch':>9} {'ratio':>7}  {'decode':>8} {'in torch':>9} {'ratio':>7} {'both':>7}"]
    for row in rows:
        cells = [f"{row[f'{what}_gbs']:8.2f} {row[f'torch_{what}_gbs']:9.2f} {row[f'{what}_gbs'] / row[f'torch_{what}_gbs']:6.1f}x" for what in ("encode", "decode")]
        lines.append(f"{row['spec']:32} {'  '.join(cells)} {ratio(row):6.1f}x")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.torch_operations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=781 * _CHUNK, metavar="N", help="about so many; in whole chunks of 32,768 (25.6 M)")
    parser.add_argument("--repetitions", type=int, default=5, metavar="R", help="of which the median counts (5)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    elements = max(1, options.elements // _CHUNK) * _CHUNK
    random = torch.Generator().manual_seed(0)
    gradient = 0.003 * torch.empty(elements).exponential_(generator=random) * (torch.randint(2, (elements,), generator=random) * 2 - 1)
    rows = [measured(operations, gradient, options.repetitions) for operations in ALL]
    print(table(rows))
    if options.out:
        options.out.write_text(json.dumps({"elements": elements, "repetitions": options.repetitions, "torch": torch.__version__, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
