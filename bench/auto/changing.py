"""Whether `auto` follows a link that changes in the middle of a training: tc changes the rate, and nobody is told.

    .venv/bin/python -m bench.auto.changing --out docs/measurements/auto_changing.json
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import timedelta
from pathlib import Path

from bench.auto.cell import SIZES
from bench.network import workers
from bench.training import interrupts, network

_LINKS = "none,100mbit,none"
_STEPS = 200  # on each link


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.auto.changing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default=_LINKS, help=f"one after the other (default {_LINKS})")
    parser.add_argument("--steps", type=int, default=_STEPS, help=f"on each (default {_STEPS})")
    parser.add_argument("--size", default="0.1M", choices=SIZES, help="of the model (default 0.1M)")
    parser.add_argument("--out", type=Path, default=Path("out/auto_changing.json"), help="default out/auto_changing.json")
    arguments = parser.parse_args()
    interrupts.terminate_as_interrupt()
    links = [network.parse_link(name) for name in arguments.links.split(",")]
    try:
        network.require_root()
    except network.NetworkError as error:
        print(f"bench.auto.changing: {error}", file=sys.stderr)
        return 1
    with network.Namespaces(4, links[0]) as net:

        def see(row: dict) -> None:
            done = row["step"] + 1
            if done % arguments.steps == 0 and done < arguments.steps * len(links):
                net.change(links[done // arguments.steps])

        steps = workers.run(net, "bench.auto.changing", {"size": arguments.size, "steps": arguments.steps * len(links)}, see)
    begins = range(0, len(steps), arguments.steps)
    phases = [_phase(link.name, steps[begin : begin + arguments.steps]) for link, begin in zip(links, begins)]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"size": arguments.size, "phases": phases}, indent=1) + "\n")
    print(f"{'link':<10}{'by':<28}{'ms a step':>10}  {'decided after':>14}")
    for phase in phases:
        print(f"{phase['link']:<10}{phase['spec']:<28}{1e3 * phase['seconds']:>10.1f}  {phase['decided_after']:>8} steps")
    return 0


def _phase(link: str, steps: list[dict]) -> dict:
    """`decided_after`: the first step from which on the last one's spec was kept."""
    last = steps[-1]
    others = [place for place, step in enumerate(steps) if (step["spec"], step["phase"]) != (last["spec"], last["phase"])]
    after = others[-1] + 1 if others else 0
    seconds = sorted(step["seconds"] for step in steps[after:])
    return {"link": link, "spec": last["spec"], "phase": last["phase"], "decided_after": after, "seconds": seconds[len(seconds) // 2],
            "specs": [step["spec"] for step in steps]}


def _work(job: dict) -> None:
    import torch
    import torch.distributed as dist

    from bench.auto.cell import Contender, Task

    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.set_num_threads(1)
    contender = Contender(Task(job["size"]), "auto")
    for step in range(job["steps"]):
        seconds = contender.step()
        if dist.get_rank() == 0:
            auto = contender.replica.stats()["auto"]
            print(json.dumps({"step": step, "seconds": seconds, "spec": auto["spec"], "phase": auto["phase"]}), flush=True)
    dist.barrier()
    contender.replica.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        _work(json.loads(sys.argv[1]))
    else:
        sys.exit(main())
