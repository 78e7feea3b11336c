"""Process groups for lanes: further groups of a model's workers."""

import uuid
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from thinwire._native import ArgumentError, SocketCommunicator
from thinwire.torch.connections import connect
from thinwire.torch.hosts import group_members


@dataclass
class LaneGroup:
    """A lane's: of all workers and, where workers share hosts, "host" and "between", as collectives name them."""

    all: dist.ProcessGroup
    parts: dict[str, dist.ProcessGroup] = field(default_factory=dict)
    connections: SocketCommunicator | None = None  # by which collectives go, where there are any


class LaneGroups:
    """Makes groups of the same workers as ``group``; those outside it do not take part."""

    def __init__(self, group: dist.ProcessGroup, timeout: timedelta, backend: str | None, hosts: list[int] | None = None):
        """Raises ArgumentError where no such groups can be made."""
        self._hosts = hosts or []
        self._group, self._timeout = group, timeout
        self._connects = backend is None
        self._ranks = dist.get_process_group_ranks(group)
        self._backend = backend or _backend_of(group)
        self._is_part = len(self._ranks) < dist.get_world_size()
        if self._is_part and self._backend == "mpi":
            raise ArgumentError("the backend mpi makes groups of a part of the world only if all of it takes part; use another backend")
        if self._hosts and self._backend == "mpi":
            raise ArgumentError("the backend mpi makes no groups of a host's workers alone; use another backend, or hosts='flat'")

    def make(self) -> LaneGroup:
        """All workers of the group call this together."""
        if self._is_part:
            made = LaneGroup(self._make_for_a_part(self._ranks, f"thinwire/{_agreed_token(self._group)}"))
        else:
            made = LaneGroup(dist.new_group(self._ranks, timeout=self._timeout, backend=self._backend))
        if self._hosts:
            token = _agreed_token(self._group)
            for name, members in group_members(self._hosts, dist.get_rank(self._group)).items():
                ranks = [self._ranks[member] for member in members]
                made.parts[name] = self._make_for_a_part(ranks, f"thinwire/{token}/{name}/{members[0]}")
        if self._connects and self._backend_for_host_memory() == "gloo" and len(self._ranks) > 1:
            made.connections = connect(self._group, self._timeout, self._hosts)
        return made

    def _backend_for_host_memory(self) -> str:
        return dict(entry.split(":") for entry in self._backend.split(",") if ":" in entry).get("cpu", self._backend)

    def _make_for_a_part(self, ranks: list[int], name: str) -> dist.ProcessGroup:
        """new_group(use_local_synchronization=True) would name the group by how many this worker has at the moment, and so give
        it the name of one that is gone, whose addresses are still in the store; or give it different names on its workers."""
        world = c10d._world
        _, store = world.pg_map[dist.group.WORLD]
        rank = ranks.index(dist.get_rank())
        group, _ = c10d._new_process_group_helper(
            len(ranks), rank, ranks, dist.Backend(self._backend), store, name, timeout=self._timeout
        )
        world.pg_group_ranks[group] = {global_rank: place for place, global_rank in enumerate(ranks)}
        return group


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """How long the group's own collectives wait."""
    device = "cpu" if "cpu:" in dist.get_backend_config(group) else "cuda"
    options = getattr(group._get_backend(torch.device(device)), "options", None)
    return getattr(options, "_timeout", c10d.default_pg_timeout)


def _agreed_token(group: dist.ProcessGroup) -> str:
    """The same on all workers of the group, and new at every call."""
    said = [uuid.uuid4().hex]
    dist.broadcast_object_list(said, src=dist.get_global_rank(group, 0), group=group)
    return said[0]


def _backend_of(group: dist.ProcessGroup) -> str:
    """In the form new_group() takes: one name where all devices have the same.

    Not NCCL: buckets are in host memory anyway, and several communicators that threads use at once need one order of their launches
    on all workers, which lanes do not have.
    """
    config = dist.get_backend_config(group)
    names = {entry.partition(":")[2] for entry in config.split(",")}
    if "nccl" in names:
        return "gloo"
    return names.pop() if len(names) == 1 else config
