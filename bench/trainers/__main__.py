"""Trains GPT-2 with tied embeddings, BERT and ViT, small ones from configurations, by Hugging Face's Trainer, PyTorch Lightning and accelerate, with plain
DDP and with thinwire, in two workers: do losses of what nobody has trained with stay within a per cent, and does a training that is resumed in the
middle end with the same bits? The first of several seeds tells. GPT-2 accumulates gradients, BERT has autocast to bfloat16 and activation checkpointing; all clip.

Trainings that the file holds are kept, so that the same command goes on where it stopped.

    .venv/bin/python -m bench.trainers --out out/trainers.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.trainers.models import EPOCH, RECIPES
from bench.trainers.worker import PLAIN, TRAINERS
from bench.training.comparison import paired_interval

_WORKERS = 2


def train(trainer: str, model: str, compressor: str, steps: int, epoch: int, folder: Path, resumes_at: int = 0, seed: int = 0) -> dict:
    result = folder / "result.json"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(_WORKERS), "-m", "bench.trainers.worker"]
    arguments = [trainer, model, compressor, "--steps", str(steps), "--epoch", str(epoch), "--folder", str(folder), "--resumes-at", str(resumes_at), "--seed", str(seed), "--result", str(result)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run([sys.executable, *torchrun, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)} ended with status {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(result.read_text())


def row_of(trainer: str, model: str, compressor: str, steps: int, epoch: int) -> dict:
    row = {"trainer": trainer, "model": model, "compressor": compressor, "steps": steps, "epoch": epoch}
    for name, spec in (("plain", PLAIN), ("compressed", compressor)):
        with tempfile.TemporaryDirectory(prefix="thinwire-trainers-") as folder:
            whole = train(trainer, model, spec, steps, epoch, Path(folder))
            resumed = train(trainer, model, spec, steps, epoch, Path(folder), steps // 2)
        row[name] = {**whole, "resumed_same_bits": resumed.pop("digest") == whole.pop("digest")}
    return row


def further_losses(row: dict, seed: int) -> dict[str, float]:
    losses = {}
    for name, spec in (("plain", PLAIN), ("compressed", row["compressor"])):
        with tempfile.TemporaryDirectory(prefix="thinwire-trainers-") as folder:
            losses[name] = train(row["trainer"], row["model"], spec, row["steps"], row["epoch"], Path(folder), seed=seed)["curve"][-1]
    return losses


def losses_of(row: dict) -> list[tuple[float, float]]:
    """Plain's and the compressed training's last loss, of each seed."""
    return [(row["plain"]["curve"][-1], row["compressed"]["curve"][-1]), *((each["plain"], each["compressed"]) for each in row.get("further", []))]


def table(rows: list[dict]) -> str:
    lines = [f"{'trainer':<13}{'model':<6}{'spec':<22}{'plain':>8}{'loss':>9}{'to plain, %':>15}{'of bytes':>10}  resumed alike"]
    for row in rows:
        plain, ours = row["plain"], row["compressed"]
        pairs = losses_of(row)
        plain_losses, our_losses = zip(*pairs, strict=True)
        mean = statistics.fmean(plain_losses)
        found = paired_interval(our_losses, plain_losses)
        difference = f"{100 * found.mean / mean:+.2f}" + ("" if found.half_width is None else f" ±{100 * found.half_width / mean:.1f}")
        same = [name for name in ("plain", "compressed") if row[name]["resumed_same_bits"]]
        lines.append(f"{row['trainer']:<13}{row['model']:<6}{row['compressor']:<22}{mean:>8.4f}{mean + found.mean:>9.4f}{difference:>15}"
                     f"{ours['bytes_a_step'] / plain['bytes_a_step']:>10.3f}  {', '.join(same) or 'none'}")
    return "\n".join(lines)


def keep(rows: list[dict], out: Path) -> None:
    out.write_text(json.dumps({"command": "python -m bench.trainers", "rows": rows}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trainers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=list(TRAINERS), help="default: all")
    parser.add_argument("--models", nargs="+", choices=RECIPES, default=list(RECIPES), help="default: all")
    parser.add_argument("--compressor", default="casq:bits=2", help="a spec (default casq:bits=2)")
    parser.add_argument("--steps", type=int, default=12 * EPOCH, help=f"of the optimizer; a multiple of two epochs (default {12 * EPOCH})")
    parser.add_argument("--epoch", type=int, default=EPOCH, help=f"steps until examples come again (default {EPOCH})")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each kind, of which the table has means (default 1)")
    parser.add_argument("--out", type=Path, default=Path("out/trainers.json"), help="default out/trainers.json")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: expected 1 or more")
    if options.epoch < 1 or options.steps < 1 or options.steps % (2 * options.epoch):
        parser.error(f"--steps {options.steps} --epoch {options.epoch}: expected steps in a multiple of two epochs, as trainings are resumed in the middle, between epochs")
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for model in options.models:
        for trainer in options.trainers:
            wanted = {"trainer": trainer, "model": model, "compressor": options.compressor, "steps": options.steps, "epoch": options.epoch}
            row = next((row for row in rows if wanted.items() <= row.items()), None)
            if row is None:
                print(f"{model} by {trainer} ...", flush=True)
                row = row_of(**wanted)
                rows.append(row)
                keep(rows, options.out)
                print(table([row]), flush=True)
            for seed in range(1 + len(row.setdefault("further", [])), options.seeds):
                print(f"{model} by {trainer}, seed {seed} ...", flush=True)
                row["further"].append(further_losses(row, seed))
                keep(rows, options.out)
    print("\n" + table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
