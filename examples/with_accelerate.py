"""Hugging Face accelerate and thinwire: one line behind prepare(), and save_state() saves what thinwire remembers with everything else.

    torchrun --nproc-per-node 2 examples/with_accelerate.py --steps 10 --folder out/accelerate
"""

import argparse
import os

import torch
from accelerate import Accelerator
from torch import nn

import thinwire.accelerate

options = argparse.ArgumentParser(description="accelerate and thinwire.")
options.add_argument("--steps", type=int, default=10, help="in all, those of earlier runs among them")
options.add_argument("--folder", default="out/accelerate")
options = options.parse_args()


class Progress:
    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(0)
module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
model, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.05))
attachment = thinwire.accelerate.attach(accelerator, model, "casq:bits=2")
progress = Progress()
accelerator.register_for_checkpointing(progress)
if os.path.exists(options.folder):
    accelerator.load_state(options.folder)
    print(f"rank {accelerator.process_index} resumes at step {progress.step}", flush=True)

for progress.step in range(progress.step + 1, options.steps + 1):
    inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(progress.step * 100 + accelerator.process_index))
    inputs = inputs.to(accelerator.device)
    loss = nn.functional.mse_loss(model(inputs), inputs.flip(1))
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()

accelerator.save_state(options.folder)
print(f"rank {accelerator.process_index} saved step {progress.step}, loss {loss.item():.4f}", flush=True)
accelerator.end_training()
