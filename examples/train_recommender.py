"""Trains a recommender of movies, embeddings of users and movies, with DDP; thinwire is one line.

    torchrun --nproc-per-node 4 examples/train_recommender.py [--sparse] [--compressor s2]

The embeddings' gradients have few rows that are not zero, and `--sparse` makes them sparse tensors; either way they travel by
`--compressor`, all else by `--rest`. `--compressor plain` leaves thinwire out. The ratings are MovieLens small's where Debian's
package r-cran-dslabs is there, and else made up.
"""

import argparse
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import ratings  # noqa: E402

WIDTH = 64


class Filter(nn.Module):
    """Neural collaborative filtering."""

    def __init__(self, users, movies, mean, sparse):
        super().__init__()
        self.user_embedding = nn.Embedding(users, WIDTH, sparse=sparse)
        self.movie_embedding = nn.Embedding(movies, WIDTH, sparse=sparse)
        for embedding in (self.user_embedding, self.movie_embedding):
            nn.init.normal_(embedding.weight, std=0.05)
        self.layers = nn.Sequential(nn.Linear(3 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        nn.init.constant_(self.layers[-1].bias, mean)

    def forward(self, users, movies):
        user, movie = self.user_embedding(users), self.movie_embedding(movies)
        return self.layers(torch.cat([user, movie, user * movie], 1)).squeeze(1)


def main():
    options = argparse.ArgumentParser(description="A recommender with DDP and thinwire.")
    options.add_argument("--compressor", default="s2:mode=exact/casq:bits=2", help="of the embeddings: a thinwire spec, or plain")
    options.add_argument("--rest", default="casq:bits=2", help="of all else")
    options.add_argument("--sparse", action="store_true", help="the embeddings' gradients are sparse tensors")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--batch", type=int, default=256, help="ratings per worker and step")
    options.add_argument("--ratings", choices=ratings.SOURCES, help="which (movielens where it is there)")
    options = options.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, workers = dist.get_rank(), dist.get_world_size()
    source = ratings.find(options.ratings)
    data = ratings.load(source)
    columns = torch.from_numpy(data.users), torch.from_numpy(data.movies), torch.from_numpy(data.stars)
    order = torch.randperm(len(data.stars), generator=torch.Generator().manual_seed(0))
    training, unseen = order.split([len(order) * 9 // 10, len(order) - len(order) * 9 // 10])

    mean = columns[2][training].mean().item()
    model = DistributedDataParallel(Filter(data.user_count, data.movie_count, mean, options.sparse))
    if options.compressor != "plain":
        import thinwire.torch
        attachment = thinwire.torch.attach(model, options.rest, rules={"*embedding*": options.compressor})  # the one line

    optimizer = torch.optim.Adagrad(model.parameters(), 0.02)  # takes sparse gradients
    generator = torch.Generator().manual_seed(0)
    if rank == 0:
        print(f"training on {ratings.describe(source)}", flush=True)
    for step in range(options.steps):
        drawn = training[torch.randint(len(training), (workers, options.batch), generator=generator)]
        users, movies, stars = (column[drawn[rank]] for column in columns)
        loss = nn.functional.mse_loss(model(users, movies), stars)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}/{options.steps}: loss {loss.item():.3f}", flush=True)

    if rank == 0:  # the model is the same on all workers, and so is what they would find
        with torch.inference_mode():
            users, movies, stars = (column[unseen] for column in columns)
            error = nn.functional.mse_loss(model.module(users, movies), stars).item()
        print(f"RMSE {math.sqrt(error):.4f} stars on {len(unseen):,} ratings that were not trained on")
        if options.compressor != "plain":
            stats = attachment.stats()
            print(f"each worker sent {stats['traffic_bytes'] / 1e6:.2f} MB, {stats['row_bytes'] / 1e6:.2f} MB of it rows of the "
                  f"embeddings, where plain all-reduce would have sent {stats['plain_bytes'] / 1e6:.0f} MB")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
