"""Workers that train alone and average every ten steps what these have changed, and that go on where they stopped.

    torchrun --nproc-per-node 2 examples/local_steps.py --steps 40 --folder out/local_steps
    torchrun --nproc-per-node 2 examples/local_steps.py --steps 80 --folder out/local_steps

Between averages every worker has parameters of its own, and its optimizer's state it has always: so each saves its own.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

import thinwire.torch

options = argparse.ArgumentParser(description="Local steps: DiLoCo, compressed.")
options.add_argument("--steps", type=int, default=40, help="in all, those of earlier runs among them")
options.add_argument("--folder", default="out/local_steps")
options = options.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)  # all workers begin with the same parameters
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
local = thinwire.torch.LocalSteps(model, optimizer, every=10, compressor="casq:bits=2")

os.makedirs(options.folder, exist_ok=True)
file, first = f"{options.folder}/{rank}.pt", 0
if os.path.exists(file):
    saved = torch.load(file)
    first = saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    local.load_state_dict(saved["thinwire"])
    print(f"rank {rank} resumes at step {first}", flush=True)

for step in range(first, options.steps):
    inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(step * 100 + rank))
    loss = nn.functional.mse_loss(model(inputs), inputs.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    local.step()

checkpoint = {"step": options.steps, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
              "thinwire": local.state_dict(all_ranks=False)}
torch.save(checkpoint, file)
with local.shared_parameters():  # the same on all workers
    inputs = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
    loss = nn.functional.mse_loss(model(inputs), inputs.flip(1))
print(f"rank {rank} saved step {options.steps}, loss of the shared model {loss.item():.4f}", flush=True)
if rank == 0:
    print(local)
dist.destroy_process_group()
