"""Trains a small VGG or ResNet on Fashion-MNIST with DDP; thinwire is one line.

    torchrun --nproc-per-node 4 examples/train_fashion_mnist.py [--model resnet] [--compressor casq:bits=2]

`--compressor plain` leaves that line out. The data is Debian's package dataset-fashion-mnist.
"""

import argparse
import gzip

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

FOLDER = "/usr/share/datasets/fashion-mnist"


def load(part):
    """Images, float32 (count, 1, 28, 28), and labels; behind IDX headers of 16 and 8 bytes."""
    pixels, labels = (
        np.frombuffer(gzip.open(f"{FOLDER}/{part}-{kind}-ubyte.gz").read(), np.uint8, offset=start)
        for kind, start in (("images-idx3", 16), ("labels-idx1", 8)))
    images = torch.from_numpy(pixels.reshape(-1, 1, 28, 28).astype(np.float32)) / 255
    return (images - 0.286) / 0.353, torch.from_numpy(labels.astype(np.int64))


def vgg():
    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, 16), nn.MaxPool2d(2), *block(16, 32), nn.MaxPool2d(2), *block(32, 64),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 10))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs))
        self.short_cut = nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.short_cut(x))


def resnet():
    stages = [(32, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        *(Residual(*stage) for stage in stages), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def main():
    options = argparse.ArgumentParser(description="Fashion-MNIST with DDP and thinwire.")
    options.add_argument("--compressor", default="casq:bits=2", help="a thinwire spec, or plain")
    options.add_argument("--model", choices=["vgg", "resnet"], default="vgg")
    options.add_argument("--epochs", type=int, default=1)
    options.add_argument("--batch", type=int, default=32, help="images per worker and step")
    options.add_argument("--train-limit", type=int, help="only the first N training images")
    options = options.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, workers = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(vgg() if options.model == "vgg" else resnet())
    if options.compressor != "plain":
        import thinwire.torch
        attachment = thinwire.torch.attach(model, options.compressor)  # the one line

    images, labels = (each[:options.train_limit] for each in load("train"))
    steps = len(images) // (workers * options.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.05, total_steps=options.epochs * steps, cycle_momentum=False)
    for epoch in range(options.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for step, batch in enumerate(order[rank::workers].split(options.batch)[:steps]):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if rank == 0 and step % 50 == 0:
                print(f"epoch {epoch} step {step}/{steps}: loss {loss.item():.3f}", flush=True)

    images, labels = load("t10k")
    model.eval()
    with torch.inference_mode():
        right = sum((model.module(images[part]).argmax(1) == labels[part]).sum()
                    for part in torch.arange(rank, len(images), workers).split(500))
    dist.all_reduce(right)
    if rank == 0:
        print(f"test accuracy {100 * right.item() / len(images):.2f} %")
        if options.compressor != "plain":
            stats = attachment.stats()
            print(f"each worker sent {stats['traffic_bytes'] / 1e6:.0f} MB where plain all-reduce "
                  f"would have sent {stats['plain_bytes'] / 1e6:.0f} MB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
