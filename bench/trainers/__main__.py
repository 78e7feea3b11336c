"""Trains GPT-2 with tied embeddings, BERT and ViT, small ones from configurations, by Hugging Face's Trainer, PyTorch Lightning and accelerate, with plain
DDP and with thinwire, in two workers: do losses of what nobody has trained with stay within a per cent, and does a training that is resumed in the
middle end with the same bits? GPT-2 accumulates gradients, BERT has autocast to bfloat16 and activation checkpointing; all clip.

Trainings that the file holds are kept, so that the same command goes on where it stopped.

    .venv/bin/python -m bench.trainers --out out/trainers.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.trainers.models import EPOCH, RECIPES
from bench.trainers.worker import PLAIN, TRAINERS

_WORKERS = 2


def train(trainer: str, model: str, compressor: str, steps: int, folder: Path, resumes_at: int = 0) -> dict:
    result = folder / "result.json"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(_WORKERS), "-m", "bench.trainers.worker"]
    arguments = [trainer, model, compressor, "--steps", str(steps), "--folder", str(folder), "--resumes-at", str(resumes_at), "--result", str(result)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run([sys.executable, *torchrun, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)} ended with status {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(result.read_text())


def row_of(trainer: str, model: str, compressor: str, steps: int) -> dict:
    row = {"trainer": trainer, "model": model, "compressor": compressor, "steps": steps}
    for name, spec in (("plain", PLAIN), ("compressed", compressor)):
        with tempfile.TemporaryDirectory(prefix="thinwire-trainers-") as folder:
            whole = train(trainer, model, spec, steps, Path(folder))
            resumed = train(trainer, model, spec, steps, Path(folder), steps // 2)
        row[name] = {**whole, "resumed_same_bits": resumed.pop("digest") == whole.pop("digest")}
    return row


def table(rows: list[dict]) -> str:
    lines = [f"{'trainer':<14}{'model':<7}{'spec':<14}{'plain loss':>11}{'loss':>9}{'to plain':>10}{'of the bytes':>14}{'same bits when resumed':>26}"]
    for row in rows:
        plain, ours = row["plain"], row["compressed"]
        difference = ours["curve"][-1] / plain["curve"][-1] - 1
        bits = " and ".join(f"{name} {'yes' if row[name]['resumed_same_bits'] else 'no'}" for name in ("plain", "compressed"))
        lines.append(f"{row['trainer']:<14}{row['model']:<7}{row['compressor']:<14}{plain['curve'][-1]:>11.4f}{ours['curve'][-1]:>9.4f}"
                     f"{100 * difference:>+9.2f}%{ours['bytes_a_step'] / plain['bytes_a_step']:>14.3f}{bits:>26}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trainers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=list(TRAINERS), help="default: all")
    parser.add_argument("--models", nargs="+", choices=RECIPES, default=list(RECIPES), help="default: all")
    parser.add_argument("--compressor", default="casq:bits=2", help="a spec (default casq:bits=2)")
    parser.add_argument("--steps", type=int, default=12 * EPOCH, help=f"of the optimizer; a multiple of {2 * EPOCH} (default {12 * EPOCH})")
    parser.add_argument("--out", type=Path, default=Path("out/trainers.json"), help="default out/trainers.json")
    options = parser.parse_args()
    if options.steps < 1 or options.steps % (2 * EPOCH):
        parser.error(f"--steps {options.steps}: expected a multiple of {2 * EPOCH}, as trainings are resumed in the middle, between epochs")
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for model in options.models:
        for trainer in options.trainers:
            wanted = {"trainer": trainer, "model": model, "compressor": options.compressor, "steps": options.steps}
            if any(wanted.items() <= row.items() for row in rows):
                continue
            print(f"{model} by {trainer} ...", flush=True)
            rows.append(row_of(**wanted))
            options.out.write_text(json.dumps({"command": "python -m bench.trainers", "rows": rows}, indent=1) + "\n")
            print(table(rows[-1:]), flush=True)
    print("\n" + table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
