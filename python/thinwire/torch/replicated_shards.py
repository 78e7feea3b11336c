"""FSDP2 on a mesh of two dimensions (HSDP): thinwire averages shards over the replicate group, in place of FSDP's all-reduce."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from thinwire import _native
from thinwire.torch import checkpoint
from thinwire.torch.fully_sharded import FullyShardedModel, ShardGroup, check_length
from thinwire.torch.lanes import Lanes
from thinwire.torch.model_parameters import Travelling, TravellingParameters
from thinwire.torch.shard_attachment import ShardAttachment

_BUCKET_BYTES = 8 * 2**20  # while one is encoded, another is on the wire


class ReplicatedShards(ShardAttachment):
    """Each worker averages its shards with those that have the same ones; residuals are of the shards' size."""

    def __init__(self, sharded: FullyShardedModel, *arguments: Any, mesh_lanes: Lanes | None):
        """``mesh_lanes``: one lane between the workers that hold a model together; None where one holds it alone."""
        super().__init__(sharded, sharded.replicate_group, *arguments)
        self._shard_group, self._mesh_lanes = sharded.shard_group, mesh_lanes
        self._shard_rank, self._shards = dist.get_rank(sharded.shard_group), sharded.shards
        # Gloo and NCCL make such a group without a word to others.
        self._alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        first = 0
        for group in sharded.groups:
            group.hook_shards(partial(self._average, group, first), self._alone)
            first += len(group.names)

    def close(self) -> None:
        was_open = self._close_lanes.alive
        super().close()
        if was_open:
            if self._mesh_lanes is not None:
                self._mesh_lanes.close()
            dist.destroy_process_group(self._alone)

    def state_dict(self, *, all_ranks: bool | None = None, to: int | None = None) -> dict[str, Any] | None:
        """As Averager.state_dict(), of all workers of the mesh: ``to`` is a worker's number in it, row by row. It loads into another number
        of replicas, and into no other number of shards."""
        if not all_ranks or to is None:
            state = super().state_dict(all_ranks=all_ranks)
        else:
            self._check_receiver(to, all_ranks)
            state = super().state_dict(all_ranks=True, to=to // self._shards)
        if not all_ranks or self._shards == 1 or state is None:
            return state
        of_shards: list[Any] = [None] * self._shards
        if to is None:
            dist.all_gather_object(of_shards, state, group=self._shard_group)
        else:
            receiver = to % self._shards
            own = self._shard_rank == receiver
            dist.gather_object(
                state, of_shards if own else None, dst=dist.get_global_rank(self._shard_group, receiver), group=self._shard_group
            )
            if not own:
                return None
        return {"format": checkpoint.FORMAT, "shards": of_shards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if isinstance(state, dict) and "shards" in state:
            if len(state["shards"]) != self._shards:
                raise _native.StateError(
                    f"the state is of parameters in {len(state['shards'])} shards, and there are {self._shards} now. Residuals are of "
                    "shards: begin without a state, or with as many shards; replicas may be more or fewer"
                )
            state = state["shards"][self._shard_rank]
        super().load_state_dict(state)

    @property
    def _workers(self) -> int:
        return self._world_size * self._shards

    def _average(self, group: ShardGroup, first: int, shards: torch.Tensor) -> None:
        """The all-reduce hook. shards: flat, the sums over the shard group of the gradients, divided by its size or by what the script has
        set."""
        indices = [first + place for place in group.reducing]
        check_length(shards.numel(), sum(self._parameters.elements[index] for index in indices))
        self._reduce(list(self._buckets(shards, indices)))
        if group.divide_factor is not None:  # of the sum over all workers, as FSDP takes it then
            shards.mul_(self._world_size)

    def _buckets(self, shards: torch.Tensor, indices: list[int]) -> Iterator[tuple[torch.Tensor, list[int]]]:
        begin = end = 0
        taken: list[int] = []
        for index in indices:
            elements = self._parameters.elements[index]
            if taken and (end + elements - begin) * shards.element_size() > _BUCKET_BYTES:
                yield shards[begin:end], taken
                begin, taken = end, []
            taken.append(index)
            end += elements
        yield shards[begin:end], taken

    def _agree(self, failed: bool) -> bool:
        # Replicas of one shard know the same of it; those of others tell.
        return failed if self._mesh_lanes is None else self._mesh_lanes.greatest([float(failed)])[0] > 0

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        if self._mesh_lanes is not None:
            self._mesh_lanes.failure.set(error)

    def _unplug(self, group: ShardGroup) -> None:
        group.unhook_shards()


def shard_parameters(sharded: FullyShardedModel) -> TravellingParameters:
    """Of a worker's shards, padded to the longest one's length, as they are when the hook is called: the same on all workers."""
    return TravellingParameters(
        [
            Travelling(name, shape, group.dtype, group.device)
            for group in sharded.groups
            for name, shape in zip(group.names, group.row_shapes, strict=True)
        ],
        sharded.names_in_model,
    )
