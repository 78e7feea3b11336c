"""thinwire chooses the compressor by what the network, the model and the machine allow.

    torchrun --nproc-per-node 2 examples/with_auto.py
"""

import logging
import os

import thinwire.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("thinwire").setLevel(logging.INFO)  # rank 0 says what was decided

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 256))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attachment = thinwire.torch.attach(model)  # "auto"

    generator = torch.Generator().manual_seed(rank)
    for step in range(60):
        inputs = torch.randn(32, 256, generator=generator)
        loss = (model(inputs) - inputs.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.4f}, by {attachment.spec}")

    if rank == 0:
        print(attachment)
    attachment.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
