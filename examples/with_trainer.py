"""Hugging Face Trainer and thinwire: one line, and the Trainer's checkpoints hold what thinwire remembers.

    torchrun --nproc-per-node 2 examples/with_trainer.py --steps 10 --folder out/trainer
"""

import argparse
import os

import torch
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import thinwire.transformers


class Flip(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, inputs, labels):
        outputs = self.layers(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


def main():
    options = argparse.ArgumentParser(description="Trainer and thinwire.")
    options.add_argument("--steps", type=int, default=10, help="in all, those of earlier runs among them")
    options.add_argument("--folder", default="out/trainer")
    options = options.parse_args()

    torch.manual_seed(0)
    inputs = torch.randn(640, 64)
    trainer = Trainer(
        model=Flip(),
        args=TrainingArguments(options.folder, max_steps=options.steps, save_steps=options.steps, per_device_train_batch_size=16,
                               use_cpu=not torch.cuda.is_available(), report_to=[], disable_tqdm=True),
        train_dataset=[{"inputs": each, "labels": each.flip(0)} for each in inputs],
    )
    thinwire.transformers.attach(trainer, "casq:bits=2")
    last = get_last_checkpoint(options.folder) if os.path.isdir(options.folder) else None
    if last:
        print(f"rank {trainer.args.process_index} resumes at step {last.rpartition('-')[2]}", flush=True)
    result = trainer.train(resume_from_checkpoint=last)
    print(f"rank {trainer.args.process_index} saved step {result.global_step}, loss {result.training_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
