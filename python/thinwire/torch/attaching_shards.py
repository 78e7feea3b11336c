"""attach() to a module that fully_shard() has prepared."""

from datetime import timedelta
from glob import escape as glob_escape
from typing import Any

import torch.distributed as dist
from torch import nn

from thinwire._arguments import Rules, checked_seed, checked_spec, checked_threads, checked_whole, quality_of, used_rules
from thinwire._native import ArgumentError
from thinwire.torch.agreement import (
    Scaler,
    checked_backend,
    checked_duration,
    checked_scaler,
    kept_terms,
    make_reducer,
    open_lanes,
    passing_terms,
)
from thinwire.torch.cores import default_threads
from thinwire.torch.fully_sharded import FullyShardedModel
from thinwire.torch.gathered_parameters import GatheredParameters, gathered_rows, gathering_reducer
from thinwire.torch.handshake import shake_hands
from thinwire.torch.hosts import Hosts
from thinwire.torch.lane_choice import FEWEST
from thinwire.torch.lane_groups import LaneGroups
from thinwire.torch.lanes import Lanes
from thinwire.torch.plain_sums import PlainSums
from thinwire.torch.replicated_shards import ReplicatedShards, shard_parameters
from thinwire.torch.scattered_shards import RowParameters, ScatteredShards
from thinwire.torch.shard_attachment import ShardAttachment


def attach_shards(
    model: nn.Module,
    compressor: str,
    *,
    rules: Rules,
    small_uncompressed: bool,
    seed: int,
    timeout: float | timedelta | None,
    scaler: Scaler | None,
    lanes: int | None,
    threads: int | None,
    measure_every: int,
    backend: str | None,
    hosts: Hosts,
    gathers: str | None,
) -> ShardAttachment:
    """See attach()."""
    sharded = FullyShardedModel(model)  # what it refuses, all workers refuse
    # Between replicas there is one leg to compress; without replicas, that between shards.
    has_replicas = sharded.replicate_group is not None
    group = sharded.replicate_group if has_replicas else sharded.shard_group
    terms = error = None
    try:
        if quality_of(checked_spec(compressor)) is not None:
            raise ArgumentError(f"{compressor!r} tries specs on DDP's buckets, and this model is FSDP's; name a spec, like 'casq:bits=2'")
        if hosts != "flat":
            raise ArgumentError(
                f"hosts = {hosts!r}; allowed for FSDP2: 'flat'. Say what shares a host by the mesh: fully_shard(..., mesh=) of two dimensions, "
                "(replicate, shard), with shards within a host"
            )
        _check_is_free(sharded)
        groups = LaneGroups(group, checked_duration(timeout, group), checked_backend(backend))
        mesh_groups = LaneGroups(sharded.shard_group, checked_duration(timeout, sharded.shard_group), backend)
        scaler = checked_scaler(scaler)
        seed = checked_seed(seed)
        if lanes is None:
            lanes = FEWEST if has_replicas else 1
        lanes = checked_whole("lanes", lanes, 1)
        rows = shard_parameters(sharded) if has_replicas else RowParameters(sharded, sharded.groups)
        threads = checked_threads(default_threads(sharded.mesh.size()) if threads is None else threads)
        measure_every = checked_whole("measure_every", measure_every, 0)
        reducer = make_reducer(
            rows,
            group,
            compressor,
            _all_rules(rules, sharded, small_uncompressed),
            small_uncompressed=False,  # what is small, whole parameters say, and not their shards
            seed=seed,
            lanes=lanes,
            threads=threads,
            measure_every=measure_every,
            keep_old_residuals=True,  # means are FSDP's as soon as they are there, and cannot be given back
            owners=rows.owners if isinstance(rows, RowParameters) else [],
        )
        gathered, gathered_by = None, None
        if gathers is not None:
            gathered, gathered_by = _gathered(sharded, gathers, seed=seed, threads=threads, measure_every=measure_every)
        kept = kept_terms(rows, reducer, seed) | {"gathered parameters": gathered_by}
        terms = {"shards": sharded.shards} | kept | passing_terms(rows, reducer) | {"lanes": lanes, "backend": backend}
    except Exception as caught:  # the other workers wait for this one's word
        error = caught
    _shake_hands(sharded, terms, error)

    made_lanes = open_lanes(groups, lanes, reducer, dist.get_world_size(group))
    arguments = (rows, reducer, made_lanes, scaler, kept, compressor)
    mesh_lanes = Lanes(PlainSums(sharded.shards))
    try:
        if not has_replicas:
            return ScatteredShards(sharded, *arguments, gathered=gathered)
        if len(made_lanes) > 0 and sharded.shards > 1:
            mesh_lanes.grow(mesh_groups, 1)
        return ReplicatedShards(sharded, *arguments, mesh_lanes=mesh_lanes if len(mesh_lanes) > 0 else None)
    except BaseException:
        made_lanes.close()
        mesh_lanes.close()
        raise


def _gathered(
    sharded: FullyShardedModel, spec: str, *, seed: int, threads: int, measure_every: int
) -> tuple[GatheredParameters | None, dict[str, str]]:
    """With the compressor of each row. None for a worker that is alone, which gathers nothing."""
    if sharded.replicate_group is not None:
        raise ArgumentError(
            f"gathers = {spec!r} on a mesh of two dimensions, (replicate, shard): there parameters are gathered within a replica alone, which is "
            "best kept within a host; leave gathers away, or shard over one dimension"
        )
    if quality_of(checked_spec(spec)) is not None:
        raise ArgumentError(f"gathers = {spec!r}; allowed: a spec, like 'casq:bits=4', or None")
    rows = gathered_rows(sharded)
    reducer = gathering_reducer(sharded, rows, spec, seed=seed, threads=threads, measure_every=measure_every)
    gathered = GatheredParameters(sharded, rows, reducer) if sharded.shards > 1 else None
    return gathered, dict(zip(rows.names, reducer.compressors, strict=True))


def _all_rules(rules: Rules, sharded: FullyShardedModel, small_uncompressed: bool) -> list[tuple[str, str]]:
    pairs = used_rules(rules, sharded.names_in_model)
    if not small_uncompressed:
        return pairs
    named = {pattern for pattern, _ in pairs}
    small = [glob_escape(name) for group in sharded.groups for name in group.small_names()]
    return pairs + [(pattern, "none") for pattern in small if pattern not in named]


def _shake_hands(sharded: FullyShardedModel, terms: dict[str, Any] | None, error: Exception | None) -> None:
    """With all workers of the mesh: with those of the same shards, and then among those that hold a model together."""
    if sharded.replicate_group is None:
        shake_hands(sharded.shard_group, terms, error)
        return
    try:
        shake_hands(sharded.replicate_group, terms, error)
    except Exception as caught:  # those of other shards wait for this worker's word
        error = caught
    shake_hands(sharded.shard_group, terms, error)


def _check_is_free(sharded: FullyShardedModel) -> None:
    for group in sharded.groups:
        if group.is_watched:
            raise ArgumentError("thinwire is attached to this model already; close() that attachment first")
        if group.has_hook or group.has_custom_reduce_scatter:
            raise ArgumentError(
                f"{type(group.module).__name__} has an all-reduce hook or a reduce-scatter of its own already, and FSDP allows one of "
                "each; attach() to a model without"
            )
