"""FSDP2: a module that fully_shard() has prepared, trained, saved by torch.distributed.checkpoint, and resumed.

    torchrun --nproc-per-node 2 examples/with_fsdp2.py --steps 10 --folder out/fsdp2
    torchrun --nproc-per-node 2 examples/with_fsdp2.py --steps 20 --folder out/fsdp2

On a mesh of one dimension thinwire is the reduce-scatter. With --replicas, which must divide the number of workers, the mesh has two, and
thinwire averages between the replicas, as between hosts. --gathers compresses by how much parameters have changed, too.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire.torch

options = argparse.ArgumentParser(description="FSDP2 and thinwire.")
options.add_argument("--steps", type=int, default=10, help="in all, those of earlier runs among them")
options.add_argument("--replicas", type=int, default=1)
options.add_argument("--gathers", help="by what parameters are gathered, on a mesh of one dimension: casq:bits=4")
options.add_argument("--folder", default="out/fsdp2")
options = options.parse_args()

dist.init_process_group("gloo")
rank, shards = dist.get_rank(), dist.get_world_size() // options.replicas
mesh = init_device_mesh("cpu", (options.replicas, shards), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
for module in [model[0], model[2], model]:
    fully_shard(module, mesh=mesh if options.replicas > 1 else mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
attachment = thinwire.torch.attach(model, "casq:bits=2", gathers=options.gathers)


def checkpoint(step):
    state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": state, "optimizer": optimizer_state, "step": step, "thinwire": attachment.all_ranks}


first = 0
if os.path.exists(f"{options.folder}/.metadata"):
    saved = checkpoint(0)
    dcp.load(saved, checkpoint_id=options.folder)
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    first = saved["step"]
    print(f"rank {rank} resumes at step {first}", flush=True)

for step in range(first, options.steps):
    inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(step * 100 + rank))
    loss = nn.functional.mse_loss(model(inputs), inputs.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

dcp.save(checkpoint(options.steps), checkpoint_id=options.folder)
print(f"rank {rank} saved step {options.steps}, loss {loss.item():.4f}", flush=True)
if rank == 0:
    print(attachment)
attachment.close()
dist.destroy_process_group()
