"""Saves and resumes with torch.distributed.checkpoint, also in another number of workers.

    torchrun --nproc-per-node 2 examples/checkpoint_distributed.py --steps 10 --folder out/checkpoint
    torchrun --nproc-per-node 3 examples/checkpoint_distributed.py --steps 20 --folder out/checkpoint
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire.torch

options = argparse.ArgumentParser(description="DDP, thinwire and torch.distributed.checkpoint.")
options.add_argument("--steps", type=int, default=10, help="in all, those of earlier runs among them")
options.add_argument("--folder", default="out/checkpoint")
options = options.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
attachment = thinwire.torch.attach(model, "casq:bits=2")

progress = {"step": 0}
checkpoint = {"model": model.module.state_dict(), "progress": progress, "thinwire": attachment.all_ranks}
if os.path.exists(f"{options.folder}/.metadata"):
    dcp.load(checkpoint, checkpoint_id=options.folder)
    model.module.load_state_dict(checkpoint["model"])
    progress = checkpoint["progress"]
    print(f"rank {dist.get_rank()} resumes at step {progress['step']}", flush=True)

for step in range(progress["step"], options.steps):
    inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(step * 100 + dist.get_rank()))
    loss = nn.functional.mse_loss(model(inputs), inputs.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

checkpoint = {"model": model.module.state_dict(), "progress": {"step": options.steps}, "thinwire": attachment.all_ranks}
dcp.save(checkpoint, checkpoint_id=options.folder)
print(f"rank {dist.get_rank()} saved step {options.steps}, loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
