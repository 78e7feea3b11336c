"""PyTorch Lightning: a callback attaches thinwire, and its state goes into Lightning's checkpoints.

    torchrun --nproc-per-node 2 examples/with_lightning.py --steps 10 --folder out/lightning
"""

import argparse
import os

import pytorch_lightning as lightning
import torch
from torch import nn

import thinwire.torch


class Thinwire(lightning.Callback):
    attachment = saved = None

    def on_train_start(self, trainer, module):
        self.attachment = thinwire.torch.attach(trainer.strategy.model, "casq:bits=2")
        if self.saved is not None:
            self.attachment.load_state_dict(self.saved)
            print(f"rank {trainer.global_rank} resumes at step {trainer.global_step}", flush=True)

    def state_dict(self):
        return self.attachment.state_dict(all_ranks=True, to=0)  # Lightning asks on every worker, and saves on rank 0

    def load_state_dict(self, state):
        self.saved = state  # comes before the model is wrapped


class Flip(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

    def training_step(self, inputs, _):
        return nn.functional.mse_loss(self.layers(inputs), inputs.flip(1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main():
    options = argparse.ArgumentParser(description="Lightning and thinwire.")
    options.add_argument("--steps", type=int, default=10, help="in all, those of earlier runs among them")
    options.add_argument("--folder", default="out/lightning")
    options = options.parse_args()

    torch.manual_seed(0)
    file = f"{options.folder}/last.ckpt"
    trainer = lightning.Trainer(
        strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), accelerator="auto" if torch.cuda.is_available() else "cpu",
        max_steps=options.steps, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Thinwire()])
    trainer.fit(Flip(), torch.utils.data.DataLoader(torch.randn(640, 64), batch_size=16), ckpt_path=file if os.path.exists(file) else None)
    trainer.save_checkpoint(file)
    print(f"rank {trainer.global_rank} saved step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
