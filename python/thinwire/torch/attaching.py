"""attach(): checks everything, agrees with the other workers, and puts an attachment to work."""

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire._arguments import Rules, checked_seed, checked_spec, checked_threads, checked_whole, quality_of, used_rules
from thinwire import _native
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
from thinwire.torch.attaching_shards import attach_shards
from thinwire.torch.attachment import Attachment
from thinwire.torch.auto import Auto, with_plain_types
from thinwire.torch.cores import default_threads
from thinwire.torch.fully_sharded import is_fully_sharded
from thinwire.torch.handshake import shake_hands
from thinwire.torch.hosts import Hosts, SaidHosts
from thinwire.torch.lane_choice import FEWEST, MOST, bucket_count, choose_lanes
from thinwire.torch.lane_groups import LaneGroups
from thinwire.torch.model_parameters import ModelParameters, TravellingParameters
from thinwire.torch.prospects import Link
from thinwire.torch.search import PLAIN
from thinwire.torch.served_models import check_is_ddp, free_slot
from thinwire.torch.shard_attachment import ShardAttachment


def attach(
    ddp_model: DistributedDataParallel | nn.Module,
    compressor: str = "auto",
    *,
    rules: Rules = None,
    small_uncompressed: bool = True,
    seed: int = 0,
    timeout: float | timedelta | None = None,
    scaler: Scaler | None = None,
    lanes: int | None = None,
    threads: int | None = None,
    measure_every: int = 47,
    backend: str | None = None,
    hosts: Hosts = "flat",
    gathers: str | None = None,
) -> Attachment | ShardAttachment:
    """Makes ``ddp_model`` average its gradients compressed. All workers call this, with the same arguments; only ``threads``
    and ``timeout`` may differ. The gradients of a worker that is alone are left as they are.

    ddp_model: a DistributedDataParallel model, or a module that torch.distributed.fsdp.fully_shard() (FSDP2) has prepared, on one mesh
        (docs/fsdp.md). Then returns a ShardAttachment.
    compressor: a spec, see thinwire.compressors(); or "auto", "auto:quality=lossless|safe|fast": the one that makes steps shortest, which is found
        out in the first steps, within limits of what a step may lose (docs/auto.md). FSDP2 takes a spec.
    rules: other specs for some parameters, by glob patterns of their names in ``ddp_model.module``; the first that
        matches decides, and "none" exempts: ``{"*.embed*": "none"}``. What torch.compile() and activation checkpointing put
        into names (``_orig_mod.``) does not count.
    small_uncompressed: what no rule names and is small (fewer than two dimensions or 1,024 elements) is sent as it is.
    timeout: seconds that a worker waits for another before it gives up with PeerError. None: as long as the model's process
        group waits.
    scaler: the GradScaler of the training, whose scale the gradients carry.
    lanes: how many buckets travel at once. None: 2 to 4, by the time that codec and link take for a piece of noise.
    threads: how many threads encode and decode a bucket. The gradients' bits do not depend on it. None: half of the cores
        that this worker has, at most 4 and at least 1, because the backward pass and data loaders want cores at the same
        time. The worker's cores are those that its process may run on, divided by LOCAL_WORLD_SIZE (torchrun sets it) or
        else by the number of workers.
    measure_every: the compression error is measured at every so many steps; 0: never. The default shares no factor with
        the periods at which compressors train, so that what is measured is of every age.
    backend: of the lanes' process groups; None: that of the model's, but in place of Gloo and NCCL connections of the lanes' own, which
        carry what is in host memory faster than Gloo does, and Gloo where workers cannot make them. They go by the interface that
        GLOO_SOCKET_IFNAME names, else that towards the host where the workers met. "gloo": Gloo alone.
    hosts: "auto": workers of a machine add up their gradients as they are, and each compresses a part of them for the other machines,
        which divides what leaves a machine, the codecs' work and the residuals by the number of its workers (docs/hosts.md). "flat": every
        worker exchanges for itself, as with "auto" where all share one machine, or none. Or a list with a number for each worker,
        which names its host. Of FSDP2 modules the mesh says it.
    gathers: of an FSDP2 module on a mesh of one dimension, the spec by which parameters are gathered: by how much they have changed since all
        got them last, which every worker then keeps. What is small goes as it is. None: FSDP gathers them as they are.

    Where a compressor chooses by the link (``reduce=auto``) attach() measures it, which takes a tenth of a second or so. To
    choose lanes, for a model of more than two buckets, it averages 4 MiB of noise four times. Where nothing is compressed ("none" for all
    parameters) buckets are all-reduced as DDP does it, with its bits, and lanes are not used; but 16-bit gradients are added up as
    float32, and on two levels where there are ``hosts``.

    Buckets in CUDA memory are brought to the host and back. "none" takes every type that DDP takes; the other compressors take
    float32, bfloat16 and float16. Raises ArgumentError for what cannot work and for arguments that differ between workers, on
    all of them.
    """
    if is_fully_sharded(ddp_model):
        return attach_shards(
            ddp_model,
            compressor,
            rules=rules,
            small_uncompressed=small_uncompressed,
            seed=seed,
            timeout=timeout,
            scaler=scaler,
            lanes=lanes,
            threads=threads,
            measure_every=measure_every,
            backend=backend,
            hosts=hosts,
            gathers=gathers,
        )
    check_is_ddp(ddp_model)
    group = ddp_model.process_group
    world_size = dist.get_world_size(group)
    said_hosts = SaidHosts(group, hosts)
    terms = error = None
    auto: Auto | None = None
    try:
        quality = quality_of(checked_spec(compressor))
        if gathers is not None:
            raise ArgumentError(f"gathers = {gathers!r}; allowed for DDP: None. It gathers no parameters; FSDP2 does")
        slot = free_slot(ddp_model)
        worker_hosts = said_hosts.chosen()
        groups = LaneGroups(group, checked_duration(timeout, group), checked_backend(backend), worker_hosts)
        scaler = checked_scaler(scaler)
        seed = checked_seed(seed)
        lanes = None if lanes is None else checked_whole("lanes", lanes, 1)
        threads = checked_threads(default_threads(world_size) if threads is None else threads)
        parameters = ModelParameters(ddp_model.module, getattr(ddp_model, "parameters_to_ignore", set()))
        measure_every = checked_whole("measure_every", measure_every, 0)

        rules = used_rules(rules, parameters.names_in_model)
        all_rules = rules if quality is None else with_plain_types(rules, parameters)

        def make(
            spec: str,
            link: Link | None = None,
            *,
            further_rules: Sequence[tuple[str, str]] = (),
            sample: TravellingParameters | None = None,
        ) -> _native.Reducer:
            return make_reducer(
                sample or parameters,
                group,
                "none" if spec == PLAIN else spec,
                None if spec == PLAIN else [*all_rules, *further_rules],
                small_uncompressed=bool(small_uncompressed) and sample is None,
                seed=seed,
                lanes=lanes or MOST,
                threads=threads,
                measure_every=1 if sample else measure_every,
                # What is staged is gone when a step ends.
                keep_old_residuals=scaler is not None or parameters.any_on_device,
                link=link,
                hosts=worker_hosts,
            )

        if quality is None:
            reducer = make(compressor)
        else:
            make("none")  # what is wrong with the rules is said at once
            auto = Auto(
                quality, make, parameters, group, threads=threads, fewest_lanes=lanes or FEWEST, rules=rules, hosts=worker_hosts
            )
            reducer = auto.reducer
        kept = kept_terms(parameters, reducer, seed)
        if quality is not None:
            kept |= {"compressors": {"auto": quality, "rules": repr(rules)}}
        terms = kept | passing_terms(parameters, reducer) | {"lanes": lanes, "backend": backend, "hosts": hosts}
    except Exception as caught:  # the other workers wait for this one's word
        error = caught
    shake_hands(group, terms, error)

    sums_plainly = auto is None and not worker_hosts and parameters.go_as_they_are(reducer.compressors)
    made_lanes = open_lanes(groups, 1 if sums_plainly else lanes or FEWEST, reducer, world_size)
    try:
        if world_size > 1 and lanes is None and auto is not None:
            made_lanes.grow(groups, MOST if bucket_count(ddp_model, parameters) > FEWEST else FEWEST)
        elif world_size > 1 and lanes is None and not sums_plainly:
            made_lanes.grow(groups, choose_lanes(ddp_model, parameters, reducer, made_lanes, threads))
        attachment = Attachment(ddp_model, parameters, reducer, made_lanes, scaler, kept, compressor, auto, rules=rules, sums_plainly=sums_plainly)
        slot.fill(ddp_model, attachment)
    except BaseException:
        made_lanes.close()
        raise
    return attachment
