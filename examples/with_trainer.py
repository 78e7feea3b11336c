"""Hugging Face Trainer: a callback attaches thinwire, and saves its state beside each of the Trainer's checkpoints.

    torchrun --nproc-per-node 2 examples/with_trainer.py --steps 10 --folder out/trainer
"""

import argparse
import os

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import thinwire.torch


class Thinwire(TrainerCallback):
    """``trainer`` is to be set: it knows the model that DDP wraps."""

    trainer = None

    def on_train_begin(self, args, state, control, **_):
        self.attachment = thinwire.torch.attach(self.trainer.model_wrapped, "casq:bits=2")
        if state.global_step > 0:
            self.attachment.load_state_dict(torch.load(self.file(args, state)))
            print(f"rank {args.process_index} resumes at step {state.global_step}", flush=True)

    def on_save(self, args, state, control, **_):
        state_of_all = self.attachment.state_dict(all_ranks=True, to=0)  # on every worker
        if state.is_world_process_zero:
            torch.save(state_of_all, self.file(args, state))

    @staticmethod
    def file(args, state):
        return f"{args.output_dir}/checkpoint-{state.global_step}/thinwire.pt"


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
    callback = Thinwire()
    callback.trainer = Trainer(
        model=Flip(),
        args=TrainingArguments(options.folder, max_steps=options.steps, save_steps=options.steps, per_device_train_batch_size=16,
                               use_cpu=not torch.cuda.is_available(), report_to=[], disable_tqdm=True),
        train_dataset=[{"inputs": each, "labels": each.flip(0)} for each in inputs],
        callbacks=[callback],
    )
    last = get_last_checkpoint(options.folder) if os.path.isdir(options.folder) else None
    result = callback.trainer.train(resume_from_checkpoint=last)
    print(f"rank {callback.trainer.args.process_index} saved step {result.global_step}, loss {result.training_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
