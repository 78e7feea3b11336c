"""Every collective on a process group, against what the contract in collective.h says."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from thinwire.torch.group_communicator import _PAIRS_FROM, GroupCommunicator, from_ordered_keys, ordered_keys
from worker_pool import pool

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
WORLD_SIZES = [1, 2, 3]


class CopyingCommunicator(GroupCommunicator):
    """Takes every byte to other memory and back, as a backend for CUDA tensors demands."""

    def _staged(self, host):
        return host.clone()

    def _room_for(self, host):
        return torch.full_like(host, 77)


def perform(kind, data, result=None, root=0, communicator=GroupCommunicator):
    result = torch.empty(0, dtype=data.dtype) if result is None else result
    chosen = communicator(dist.group.WORLD) if isinstance(communicator, type) else communicator
    chosen.perform(SimpleNamespace(kind=kind, group="all", data=data, result=result, root=root))
    return result


def ranks():
    return range(dist.get_world_size())


def check_combinations(communicator):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    everyones = torch.tensor([[1.5, -2.0, 0.0, -0.0, 100.0], [-3.0, 0.25, 5.0, 0.0, -1.0], [8.0, 8.0, -8.0, 1.0, 2.0]])[:world_size]
    for dtype in FLOATS:
        data = everyones[rank].to(dtype, copy=True)
        perform("sum", data, communicator=communicator)
        torch.testing.assert_close(data.float(), everyones.sum(0))
        data = everyones[rank].to(dtype, copy=True)
        perform("max", data, communicator=communicator)
        assert data.dtype == dtype and torch.equal(data.float(), everyones.amax(0))
    for dtype in (torch.int32, torch.uint8):
        data = torch.tensor([1, 2 + rank, 40], dtype=dtype)
        perform("sum", data, communicator=communicator)
        assert data.tolist() == [world_size, 2 * world_size + sum(ranks()), 40 * world_size]
    wrapped = torch.tensor([2**32 - 1], dtype=torch.uint32)
    perform("sum", wrapped, communicator=communicator)
    assert wrapped.tolist() == [2**32 - world_size]
    bits = torch.tensor([1 << rank, 0, 1 << 31 if rank == world_size - 1 else 0], dtype=torch.uint32)
    perform("unite", bits, communicator=communicator)
    assert bits.tolist() == [2**world_size - 1, 0, 1 << 31]


def check_movements(communicator):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    gathered = torch.empty(world_size * 3, dtype=torch.uint8)
    perform("gather", torch.full((3,), rank + 1, dtype=torch.uint8), gathered, communicator=communicator)
    assert gathered.tolist() == [r + 1 for r in ranks() for _ in range(3)]
    shards = torch.tensor([10 * rank + r for r in ranks()], dtype=torch.uint8)
    mine = torch.empty(world_size, dtype=torch.uint8)
    perform("scatter", shards, mine, communicator=communicator)
    assert mine.tolist() == [10 * r + rank for r in ranks()]
    for root in ranks():
        data = torch.full((4,), rank, dtype=torch.uint8)
        perform("broadcast", data, root=root, communicator=communicator)
        assert data.tolist() == [root] * 4


def check_large_shards(elements):
    """Gloo moves them between two workers at a time."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = torch.stack([torch.arange(elements) % 251 + 10 * rank + r for r in ranks()]).to(torch.float32)
    mine = perform("scatter", shards.flatten(), torch.empty(world_size * elements))
    expected = torch.stack([torch.arange(elements) % 251 + 10 * r + rank for r in ranks()]).to(torch.float32)
    assert torch.equal(mine.view(world_size, -1), expected)


def check_nothing():
    for kind in ("sum", "max", "unite", "gather", "scatter", "broadcast"):
        dtype = torch.uint32 if kind == "unite" else torch.uint8
        perform(kind, torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype))


def check_nan_wins():
    for winner in ranks():
        for dtype in FLOATS:
            data = torch.full((7,), 1.0 if dist.get_rank() != winner else float("nan"), dtype=dtype)
            data[0] = float("inf")
            perform("max", data)
            assert data[0].item() == float("inf") and data[1:].isnan().all()


def check_or_from_gather():
    communicator = GroupCommunicator(dist.group.WORLD)
    communicator._has_or = False  # as NCCL
    words = torch.tensor([1 << dist.get_rank(), 8], dtype=torch.uint32)
    perform("unite", words, communicator=communicator)
    assert words.tolist() == [2 ** dist.get_world_size() - 1, 8]


def check_same_bits():
    data = torch.randn(10_001, generator=torch.Generator().manual_seed(dist.get_rank()))
    perform("sum", data)
    return data


def check_subgroup():
    """Ranks of a group are its own: a broadcast's root is one of them."""
    group = dist.new_group([1, 2])
    if dist.get_rank() > 0:
        data = torch.full((2,), dist.get_rank(), dtype=torch.uint8)
        perform("broadcast", data, root=1, communicator=GroupCommunicator(group))
        assert data.tolist() == [2, 2]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("communicator", [GroupCommunicator, CopyingCommunicator])
def test_collectives_combine_and_move_what_they_should(world_size, communicator):
    pool(world_size).run(check_combinations, communicator)
    pool(world_size).run(check_movements, communicator)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("elements", [_PAIRS_FROM // 4 - 1, _PAIRS_FROM // 4, _PAIRS_FROM])
def test_large_shards_reach_whom_they_should(world_size, elements):
    pool(world_size).run(check_large_shards, elements)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_empty_tensors_are_legal(world_size):
    pool(world_size).run(check_nothing)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_nan_of_any_worker_wins_the_maximum(world_size):
    pool(world_size).run(check_nan_wins)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_or_is_built_where_the_backend_lacks_it(world_size):
    pool(world_size).run(check_or_from_gather)


def test_sums_have_the_same_bits_on_all_workers():
    first, *others = pool(3).run(check_same_bits)
    assert all(torch.equal(first, other) for other in others)


def test_a_group_may_be_a_part_of_the_world():
    pool(3).run(check_subgroup)


def test_keys_order_as_the_values_do():
    values = torch.tensor([-float("inf"), -1e30, -1.0, -1e-40, -0.0, 0.0, 1e-40, 2.0, float("inf"), float("nan"), -float("nan")])
    keys = ordered_keys(values)
    assert (keys[1:] >= keys[:-1]).all() and keys[4] < keys[5]
    torch.testing.assert_close(from_ordered_keys(keys), values, rtol=0, atol=0, equal_nan=True)
