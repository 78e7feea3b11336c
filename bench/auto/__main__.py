"""Whether `auto` takes the spec that is fastest: on a grid of links and models, beside plain all-reduce and fixed specs.

In each cell four workers, in network namespaces, train copies of a model on real data in turns of five steps, one for each spec;
`auto` has had its first fifty steps before. Times are medians of the slowest worker's, over 40 steps (10 where a plain one takes over
10 s). "plain again" is plain beside plain: what differs between the two is the machine's noise. Cells that the JSON file has already
are not measured again.

    .venv/bin/python -m bench.auto --out docs/measurements/auto.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from bench.auto.cell import SIZES
from bench.network import workers
from bench.training import interrupts, network

_LINKS = "none,10gbit,1gbit,100mbit"
_AUTO, _PLAIN, _AGAIN = "auto", "plain", "plain again"
_HOSTS = "hosts:"
_FIXED = ("none", "thinwire:bf16", "casq:bits=2,reduce=scatter", "casq:bits=4,reduce=scatter", "casq:rate=1,reduce=scatter",
          "casq:rate=0.5,reduce=scatter")
_NEAR = 1.05  # times the best


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.workers % arguments.per_host:
        parser.error(f"--per-host is {arguments.per_host}; allowed: what divides {arguments.workers} workers")
    interrupts.terminate_as_interrupt()
    cells = json.loads(arguments.out.read_text())["cells"] if arguments.out.exists() else []
    try:
        network.require_root()
    except network.NetworkError as error:
        print(f"bench.auto: {error}", file=sys.stderr)
        return 1
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for link in arguments.links.split(","):
        for size in arguments.sizes.split(","):
            if any((cell["link"], cell["size"]) == (link, size) for cell in cells):
                continue
            with network.Namespaces(arguments.workers, network.parse_link(link), per_host=arguments.per_host) as net:
                cell = workers.run(net, "bench.auto.cell", {"size": size, "specs": _specs(arguments.per_host)})[0]
                cells.append({"link": link, "size": size, "workers": arguments.workers, "per_host": arguments.per_host, **cell})
            print(_line(cells[-1]), flush=True)
            arguments.out.write_text(json.dumps({"cells": cells}, indent=1) + "\n")
    print(f"\n{table(cells)}")
    return 0


def _specs(per_host: int) -> list[str]:
    if per_host == 1:
        return [_AUTO, _PLAIN, *_FIXED, _AGAIN]
    return [_HOSTS + _AUTO, _PLAIN, *(_HOSTS + spec for spec in _FIXED), _AGAIN]


def judged(cell: dict) -> dict:
    """The best spec of those that were measured and that its quality allows of this model, what auto took, how far it is from the best,
    and from the slower of both plain ones."""
    seconds, auto = cell["seconds"], _auto(cell)
    allowed = {"none", _PLAIN, _AGAIN, *(_main(prospect["spec"]) for prospect in auto["prospects"] if prospect["is_allowed"])}
    best = min((spec for spec in seconds if spec not in cell["auto"] and _main(spec) in allowed), key=seconds.get)
    plain = [seconds[_PLAIN], seconds[_AGAIN]]
    return {"best": best, "took": _taken(auto), "noise": max(plain) / min(plain),
            "to_best": _seconds(cell) / seconds[best], "to_plain": _seconds(cell) / max(plain)}


def table(cells: list[dict]) -> str:
    lines = [f"{'link':<8}{'size':>5}{'plain':>8}{'again':>8}{'auto':>8}{'/best':>6}{'/plain':>7}  {'took':<27}{'best':<21}".rstrip()]
    lines += [_line(cell) for cell in cells]
    verdicts = [judged(cell) for cell in cells]
    near = sum(verdict["to_best"] <= _NEAR for verdict in verdicts)
    slower = sum(verdict["to_plain"] > 1 for verdict in verdicts)
    errors = model_errors(cells)
    of_auto = f"within {100 * _NEAR - 100:.0f} % of the best in {near} of {len(cells)} cells, slower than the slower plain in {slower}"
    median, worst = 100 * statistics.median(errors), 100 * errors[-1]
    of_model = f"off by {median:.0f} % in the median of {len(errors)} predictions, at worst by {worst:.0f} %"
    return "\n".join([*lines, "", f"milliseconds; {of_auto}", f"the model: {of_model}"])


def model_errors(cells: list[dict]) -> list[float]:
    """By how much what was predicted differs from what was measured later, as a share of that, for each spec that is both."""
    errors = []
    for cell in cells:
        fixed = {_bare(spec): seconds for spec, seconds in cell["seconds"].items()}
        for prospect in _auto(cell)["prospects"]:
            measured = fixed.get(prospect["spec"])
            if measured is not None and not prospect.get("by_rows"):  # fixed specs have no rules for rows
                errors.append(abs(prospect["seconds"] - measured) / measured)
    return sorted(errors)


def _auto(cell: dict) -> dict:
    """What it says of itself."""
    (figures,) = cell["auto"].values()
    return figures


def _seconds(cell: dict) -> float:
    """Of a step by `auto`."""
    (spec,) = cell["auto"]
    return cell["seconds"][spec]


def _taken(auto: dict) -> str:
    return auto["spec"] + (",rows" if auto.get("rules") else "")


def _line(cell: dict) -> str:
    seconds, verdict = cell["seconds"], judged(cell)
    numbers = "".join(f"{1e3 * each:>8.1f}" for each in (seconds[_PLAIN], seconds[_AGAIN], _seconds(cell)))
    return (f"{cell['link']:<8}{cell['size']:>5}{numbers}{verdict['to_best']:>6.2f}{verdict['to_plain']:>7.2f}"
            f"  {_short(verdict['took']):<27}{_short(verdict['best']):<21}").rstrip()


def _main(spec: str) -> str:
    """Without how its codes are combined, and between whom."""
    return _bare(spec).partition(",reduce=")[0]


def _short(spec: str) -> str:
    return _bare(spec).replace(",reduce=", ",")


def _bare(spec: str) -> str:
    """As thinwire calls it."""
    return spec.removeprefix(_HOSTS).removeprefix("thinwire:")


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="bench.auto", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--links", default=_LINKS, help=f"rates, both ways for each worker (default {_LINKS})")
    result.add_argument("--sizes", default=",".join(SIZES), help=f"of models, in parameters (default {','.join(SIZES)})")
    result.add_argument("--workers", type=int, default=4, help="default 4")
    result.add_argument("--per-host", type=int, default=1, help="workers that share a link; then all but plain goes on two levels (default 1)")
    result.add_argument("--out", type=Path, default=Path("out/auto.json"), help="where to keep the cells (default out/auto.json)")
    return result


if __name__ == "__main__":
    sys.exit(main())
