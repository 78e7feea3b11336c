"""PyTorch Lightning and thinwire: one callback, and Lightning's checkpoints hold what thinwire remembers.

    torchrun --nproc-per-node 2 examples/with_lightning.py --steps 10 --folder out/lightning
"""

import argparse
import os

import pytorch_lightning as lightning
import torch
from torch import nn

from thinwire.lightning import ThinwireCallback


class Flip(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

    def training_step(self, inputs, _):
        return nn.functional.mse_loss(self.layers(inputs), inputs.flip(1))

    def on_train_start(self):
        if self.global_step > 0:
            print(f"rank {self.global_rank} resumes at step {self.global_step}", flush=True)

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
        callbacks=[ThinwireCallback("casq:bits=2")])
    trainer.fit(Flip(), torch.utils.data.DataLoader(torch.randn(640, 64), batch_size=16), ckpt_path=file if os.path.exists(file) else None)
    trainer.save_checkpoint(file)
    print(f"rank {trainer.global_rank} saved step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
