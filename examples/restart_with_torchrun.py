"""A training that torchrun starts again after a worker, or a machine with all of its workers, is lost, and that goes on from its last checkpoint.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 --max-restarts 3 \\
        examples/restart_with_torchrun.py --lose-a-worker-at 25

On several machines, with --nnodes 1:4 --rdzv-backend c10d and the like, those that are left go on: what thinwire remembers of all workers
loads into another number of them.

Without that variable workers that are started again find the addresses of those that are gone in torchrun's store, and wait for them
in init_process_group(): with plain DDP as with thinwire.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire.torch

options = argparse.ArgumentParser(description="DDP and thinwire under torchrun's restarts.")
options.add_argument("--steps", type=int, default=40)
options.add_argument("--folder", default="out/restart")
options.add_argument("--lose-a-worker-at", type=int, metavar="STEP", help="the last worker kills itself there, once")
options.add_argument("--lose-this-machine-at", type=int, metavar="STEP", help="its workers kill torchrun and themselves there")
options = options.parse_args()

dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_rank() == dist.get_world_size() - 1
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
attachment = thinwire.torch.attach(model, "casq:bits=2")

os.makedirs(options.folder, exist_ok=True)
file, first = f"{options.folder}/last.pt", 0
if os.path.exists(file):
    saved = torch.load(file)
    first = saved["step"]
    model.module.load_state_dict(saved["model"])
    attachment.load_state_dict(saved["thinwire"])
    print(f"rank {rank} resumes at step {first}", flush=True)

for step in range(first, options.steps):
    if step == options.lose_a_worker_at and last and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == options.lose_this_machine_at:
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(step * 100 + rank))
    loss = nn.functional.mse_loss(model(inputs), inputs.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 10 == 0:
        state_of_all = attachment.state_dict(all_ranks=True, to=0)  # on every worker
        if rank == 0:
            torch.save({"step": step + 1, "model": model.module.state_dict(), "thinwire": state_of_all}, f"{file}.new")
            os.replace(f"{file}.new", file)  # whole, or not there
print(f"rank {rank} is done after step {options.steps}, loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
