"""Which workers share a host: attach()'s argument ``hosts``."""

from collections import defaultdict
from typing import Any

import torch.distributed as dist

from thinwire import _native
from thinwire._native import ArgumentError

Hosts = str | list[int] | tuple[int, ...]


class SaidHosts:
    """What the workers of a group say of their hosts; all make this together, whatever they were given."""

    def __init__(self, group: dist.ProcessGroup, hosts: Hosts):
        self._own = hosts
        self._identities: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(self._identities, _native.host_identity(), group=group)

    def chosen(self) -> list[int]:
        """Of each worker the number of its host; empty where all are taken for workers that share none. Raises ArgumentError."""
        if self._own == "flat":
            return []
        if self._own == "auto":
            hosts = _native.number_hosts(self._identities)
        else:
            hosts = _checked(self._own, len(self._identities))
        return hosts if _native.has_two_levels(hosts) else []


def group_members(hosts: list[int], rank: int) -> dict[str, list[int]]:
    """Ranks of the groups in which a worker exchanges on two levels, as the reducer has them: "host", and "between" hosts."""
    workers = defaultdict(list)
    for worker, host in enumerate(hosts):
        workers[host].append(worker)
    within = workers[hosts[rank]]
    place, parts = within.index(rank), min(map(len, workers.values()))
    between = sorted(its[place] for its in workers.values()) if place < parts else [rank]
    return {"host": within, "between": between}


def _checked(hosts: Any, world_size: int) -> list[int]:
    is_list = isinstance(hosts, (list, tuple)) and all(isinstance(host, int) and not isinstance(host, bool) for host in hosts)
    if not is_list or len(hosts) != world_size or not all(0 <= host < 2**31 for host in hosts):
        raise ArgumentError(
            f"hosts = {hosts!r}; allowed: 'flat', 'auto', or a list with a number for each of the {world_size} workers that names its host"
        )
    return list(hosts)
