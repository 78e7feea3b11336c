"""A worker of bench.trainers: one training by one trainer, whose results rank 0 writes to a file."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from bench.trainers.models import RECIPES, Recipe, loss_of, made
from bench.training.trainer import one_cycle

_WARM_UP_SHARE = 0.1
PLAIN = "plain"


class Training:
    """What a trainer is asked for, and what it tells."""

    def __init__(self, recipe: Recipe, seed: int, steps: int, epoch: int, compressor: str, folder: Path, resumes_at: int):
        self.recipe, self.seed, self.steps, self.epoch = recipe, seed, steps, epoch
        self.compressor, self.folder, self.resumes_at = compressor, folder, resumes_at
        self.workers, self.rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        self.train = recipe.samples(epoch * recipe.batch * recipe.accumulates * self.workers, "train")
        self.test = recipe.samples(recipe.tests, "test")
        self.model = made(recipe, seed)
        self.curve: list[float] = []  # losses of what nobody has trained with, after each epoch
        self.attachment = None

    def end_epoch(self) -> None:
        self.curve.append(loss_of(self.model, self.test))

    def adam(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.recipe.learning_rate, weight_decay=0.0)

    def schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: one_cycle(step, self.steps, _WARM_UP_SHARE) if self.recipe.decays else 1.0)

    def digest(self) -> str:
        return hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in self.model.parameters())).hexdigest()


def by_transformers(training: Training) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    import thinwire.transformers

    class EndOfEpoch(TrainerCallback):
        def on_epoch_end(self, *_, **__):
            training.end_epoch()

    recipe, optimizer = training.recipe, training.adam()
    trainer = Trainer(
        model=training.model,
        args=TrainingArguments(
            str(training.folder), seed=42 + training.seed, max_steps=training.steps, save_steps=training.steps // 2, logging_strategy="no",
            max_grad_norm=recipe.clip, gradient_accumulation_steps=recipe.accumulates, bf16=recipe.autocast,
            per_device_train_batch_size=recipe.batch, use_cpu=True, report_to=[], disable_tqdm=True, ddp_find_unused_parameters=False),
        train_dataset=training.train, optimizers=(optimizer, training.schedule(optimizer)), callbacks=[EndOfEpoch()])  # fmt: skip
    callback = None if training.compressor == PLAIN else thinwire.transformers.attach(trainer, training.compressor)
    trainer.train(resume_from_checkpoint=f"{training.folder}/checkpoint-{training.resumes_at}" if training.resumes_at else None)
    training.attachment = callback and callback.attachment


def by_lightning(training: Training) -> None:
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import ModelCheckpoint

    from thinwire.lightning import ThinwireCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = training.model

        def training_step(self, batch, _):
            return self.model(**batch).loss

        def on_train_epoch_end(self):
            training.end_epoch()

        def configure_optimizers(self):
            optimizer = training.adam()
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": training.schedule(optimizer), "interval": "step"}}

    recipe = training.recipe
    callback = None if training.compressor == PLAIN else ThinwireCallback(training.compressor)
    kept = ModelCheckpoint(training.folder, filename="{step}", save_top_k=-1, every_n_epochs=training.steps // 2 // training.epoch,
                           save_on_train_epoch_end=True)  # fmt: skip
    trainer = lightning.Trainer(
        strategy="ddp", devices=training.workers, accelerator="cpu", max_epochs=training.steps // training.epoch, logger=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=recipe.clip, accumulate_grad_batches=recipe.accumulates,
        precision="bf16-mixed" if recipe.autocast else "32-true", callbacks=[kept, *([callback] if callback else [])])  # fmt: skip
    loader = torch.utils.data.DataLoader(training.train, batch_size=recipe.batch, shuffle=True)
    saved = f"{training.folder}/step={training.resumes_at}.ckpt" if training.resumes_at else None
    trainer.fit(Module(), loader, ckpt_path=saved)
    training.attachment = callback and callback.attachment


def by_accelerate(training: Training) -> None:
    from accelerate import Accelerator

    import thinwire.accelerate

    recipe = training.recipe
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=recipe.accumulates, mixed_precision="bf16" if recipe.autocast else "no")
    adam = training.adam()
    schedule = training.schedule(adam)
    accelerator.register_for_checkpointing(schedule)
    model, optimizer = accelerator.prepare(training.model, adam)
    if training.compressor != PLAIN:
        training.attachment = thinwire.accelerate.attach(accelerator, model, training.compressor)
    if training.resumes_at:
        accelerator.load_state(f"{training.folder}/{training.resumes_at}")
    for step in range(training.resumes_at, training.steps):
        epoch, place = divmod(step, training.epoch)
        order = torch.randperm(len(training.train), generator=torch.Generator().manual_seed(1000 * training.seed + epoch))
        for part in range(recipe.accumulates):
            first = ((place * recipe.accumulates + part) * training.workers + training.rank) * recipe.batch
            with accelerator.accumulate(model):
                loss = model(**training.train[order[first : first + recipe.batch]]).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), recipe.clip)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                schedule.step()
        if place == training.epoch - 1:
            training.end_epoch()
        if step + 1 == training.steps // 2:
            accelerator.save_state(f"{training.folder}/{step + 1}")


TRAINERS = {"transformers": by_transformers, "lightning": by_lightning, "accelerate": by_accelerate}


def plain_bytes(model: nn.Module, workers: int) -> float:
    """What a worker sends in a step by a ring."""
    return 2 * (workers - 1) / workers * sum(4 * value.numel() for value in model.parameters())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("trainer", choices=TRAINERS)
    options.add_argument("model", choices=RECIPES)
    options.add_argument("compressor")
    options.add_argument("--seed", type=int, default=0, help="of weights and of the order of what is trained with")
    options.add_argument("--steps", type=int, required=True)
    options.add_argument("--epoch", type=int, required=True, help="its steps")
    options.add_argument("--folder", type=Path, required=True, help="of the trainer's checkpoints")
    options.add_argument("--resumes-at", type=int, default=0, metavar="STEP")
    options.add_argument("--result", type=Path, required=True)
    options = options.parse_args()
    torch.set_num_threads(1)
    training = Training(RECIPES[options.model], options.seed, options.steps, options.epoch, options.compressor, options.folder, options.resumes_at)
    begin = time.perf_counter()
    TRAINERS[options.trainer](training)
    seconds = time.perf_counter() - begin
    stats = training.attachment and training.attachment.stats()
    result = {"curve": training.curve, "digest": training.digest(), "seconds": seconds,
              "bytes_a_step": stats["traffic_bytes"] / stats["steps"] if stats else plain_bytes(training.model, training.workers)}  # fmt: skip
    if training.rank == 0:
        options.result.write_text(json.dumps(result))
    dist.barrier()
    os._exit(0)  # PyTorch 2.13 sometimes aborts where it takes itself apart


if __name__ == "__main__":
    main()
