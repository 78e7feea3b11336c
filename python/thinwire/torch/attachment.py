"""The DDP communication hook: attach() and what it returns."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.
import weakref
from datetime import timedelta
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire import _native
from thinwire._arguments import Rules, checked_seed, checked_threads, rule_pairs
from thinwire.torch import checkpoint, statistics
from thinwire.torch.cores import default_threads
from thinwire.torch.handshake import shake_hands
from thinwire.torch.lane_choice import FEWEST, MOST, choose_lanes
from thinwire.torch.lanes import BucketJob, Lanes, group_terms
from thinwire.torch.model_parameters import ModelParameters, check_unjoined, refuse_join
from thinwire.torch.sparse_bucket import DenseForms, SparseBucket

Future = torch.futures.Future[torch.Tensor]


class Scaler(Protocol):
    """torch.amp.GradScaler, or what has its scale."""

    def get_scale(self) -> float: ...


def attach(
    ddp_model: DistributedDataParallel,
    compressor: str = "casq:bits=2",
    *,
    rules: Rules = None,
    small_uncompressed: bool = True,
    seed: int = 0,
    timeout: float | timedelta = 300.0,
    scaler: Scaler | None = None,
    lanes: int | None = None,
    threads: int | None = None,
    measure_every: int = 47,
    backend: str | None = None,
) -> "Attachment":
    """Makes ``ddp_model`` average its gradients compressed. All workers call this, with the same arguments; only ``threads``
    may differ.

    compressor: a spec, see thinwire.compressors().
    rules: other specs for some parameters, by glob patterns of their names in ``ddp_model.module``; the first that
        matches decides, and "none" exempts: ``{"*.embed*": "none"}``.
    small_uncompressed: what no rule names and is small (fewer than two dimensions or 1,024 elements) is sent as it is.
    timeout: seconds that a worker waits for another before it gives up with PeerError.
    scaler: the GradScaler of the training, whose scale the gradients carry.
    lanes: how many buckets travel at once. None: 2 to 4, by the time that codec and link take for a piece of noise.
    threads: how many threads encode and decode a bucket. The gradients' bits do not depend on it. None: half of the cores
        that this worker has, at most 4 and at least 1, because the backward pass and data loaders want cores at the same
        time. The worker's cores are those that its process may run on, divided by LOCAL_WORLD_SIZE (torchrun sets it) or
        else by the number of workers.
    measure_every: the compression error is measured at every so many steps; 0: never. The default shares no factor with
        the periods at which compressors train, so that what is measured is of every age.
    backend: of the lanes' process groups; None: that of the model's. "gloo" spares a way through the GPU under NCCL.

    Where a compressor chooses by the link (``reduce=auto``) attach() measures it, which takes a tenth of a second or so. To
    choose lanes, for a model of more than two buckets, it averages 4 MiB of noise four times.

    Buckets in CUDA memory are brought to the host and back. Raises ArgumentError for what cannot work and for arguments
    that differ between workers, on all of them.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise _native.ArgumentError(
            f"attach() takes a DistributedDataParallel model; got {type(ddp_model).__name__}. Wrap the model first"
        )
    group = ddp_model.process_group
    terms = error = None
    try:
        slot = _free_slot(ddp_model)
        check_unjoined(ddp_model)
        timeout = _duration(timeout)
        if measure_every < 0:
            raise _native.ArgumentError(f"measure_every = {measure_every}; allowed: 0 or more")
        parameters = ModelParameters(ddp_model)
        threads = checked_threads(default_threads(dist.get_world_size(group)) if threads is None else threads)
        reducer = _native.Reducer(
            layout=parameters.layout,
            compressor=compressor,
            rules=rule_pairs(rules),
            small_uncompressed=small_uncompressed,
            seed=checked_seed(seed),
            rank=dist.get_rank(group),
            world_size=dist.get_world_size(group),
            lanes=MOST if lanes is None else lanes,
            threads=threads,
            measure_every=measure_every,
        )
        terms = _terms(parameters, reducer, seed) | group_terms(group) | {
            "version": thinwire.__version__,
            "lanes": lanes,
            "backend": backend,
            "dtypes": parameters.dtypes,
            "description": reducer.description,
            "fingerprint": reducer.fingerprint,
        }
    except Exception as caught:  # the other workers wait for this one's word
        error = caught
    shake_hands(group, terms, error)

    made_lanes = Lanes(group, timeout, backend)
    try:
        made_lanes.grow(FEWEST if lanes is None else lanes)
        if reducer.chooses_by_link:
            made_lanes.run(reducer.measure_link(0))
        if lanes is None:
            made_lanes.grow(choose_lanes(ddp_model, parameters, reducer, made_lanes, threads))
    except BaseException:
        made_lanes.close()
        raise
    attachment = Attachment(ddp_model, parameters, reducer, made_lanes, scaler, _terms(parameters, reducer, seed))
    slot.attachment = attachment
    ddp_model.join_hook = refuse_join
    if not ddp_model._comm_hooks:
        ddp_model.register_comm_hook(slot, average_bucket)
        ddp_model.register_forward_pre_hook(check_before_forward)
    return attachment


class Attachment:
    """thinwire at work on one DDP model. Made by attach(); works until close() or until the model is gone."""

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        parameters: ModelParameters,
        reducer: _native.Reducer,
        lanes: Lanes,
        scaler: Scaler | None,
        terms: dict[str, Any],
    ):
        # The model holds the hook, and so the attachment, from C++, where no garbage collector looks.
        self._model = weakref.ref(ddp_model)
        self._group = ddp_model.process_group
        self._parameters = parameters
        self._reducer = reducer
        self._lanes = lanes
        self._scaler = scaler
        self._terms = terms
        self._steps = 0
        self._loss_scale = 1.0
        self._dense_forms = DenseForms()
        self._jobs: list[BucketJob] = []  # of the backward pass under way
        self._close_lanes = weakref.finalize(ddp_model, lanes.close)

    def average(self, bucket: dist.GradBucket) -> Future:
        """Sends a bucket on its way to the mean, which replaces its gradients, in their dtype."""
        if bucket.index() == 0:
            self._begin_step()
        parameters = self._parameters.indices(bucket.parameters())
        buffer = bucket.buffer()
        sparse = SparseBucket(buffer, parameters[0], self._dense_forms) if buffer.is_sparse else None
        job = BucketJob(self._reducer, sparse.flat if sparse else buffer, parameters, self._loss_scale, sparse)
        self._jobs.append(job)
        self._lanes.submit(bucket.index(), job)
        if bucket.is_last():
            self._steps += 1
        return job.future

    @property
    def compressors(self) -> dict[str, str]:
        """The spec by which each parameter travels."""
        return dict(zip(self._parameters.names, self._reducer.compressors, strict=True))

    @property
    def lanes(self) -> int:
        """How many buckets travel at once."""
        return len(self._lanes)

    def stats(self) -> dict[str, Any]:
        """This worker's figures since attach().

        steps; reductions (of buckets); rounds (collectives); setup_bytes, payload_bytes, second_bytes (first and second
        encodings); traffic_bytes (sent, by the collectives' standard algorithms); plain_bytes (what ring all-reduce would
        have sent uncompressed); ratio = plain_bytes / traffic_bytes; compressed_share (of the elements);
        compression_error = |encoded - decoded|^2 / |encoded|^2 where it was measured; row_bytes (of traffic_bytes, what
        compressors of sparse rows sent); fallbacks (messages so dense that these sent them uncompressed); non_finite (buckets
        with NaN or infinity on some worker); seconds of each phase, summed over lanes: setup, encode, wire, decode. A quotient that is
        undefined is None.
        """
        return statistics.figures(self._reducer.counters(), self._steps)

    def __str__(self) -> str:
        specs = sorted(set(self._reducer.compressors))
        return statistics.table(f"thinwire on {len(self._parameters.names)} parameters: {', '.join(specs)}", self.stats())

    def state_dict(self, *, all_ranks: bool = False) -> dict[str, Any]:
        """What training must remember to continue with the same bits: residuals, compressors' memories, steps.

        Every worker saves and loads its own; torch.load(weights_only=True) reads it. all_ranks: all workers call this
        together, and each gets the state of all, so that one of them can save it. Not during a backward pass; after one that
        failed, it waits until no lane waits for a peer any more, and what failed has left no trace.
        """
        self._wait_for_lanes()
        rank, world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        own = checkpoint.pack(self._reducer.state(), self._terms, rank, world_size, self._steps)
        if not all_ranks:
            return own
        states: list[Any] = [None] * world_size
        dist.all_gather_object(states, own, group=self._group)
        return checkpoint.pack_all(states)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from this worker's own state, or from its part of the state of all ranks.

        Residuals of another number of workers (all_ranks only) are replaced by their mean on every worker. Raises
        StateError, and changes nothing, when the state was saved with other parameters, specs, seed, or as another rank.
        """
        self._wait_for_lanes()
        rows, steps = checkpoint.unpack(state, self._terms, dist.get_rank(self._group), dist.get_world_size(self._group))
        self._reducer.load_state(rows)
        self._steps = steps

    def close(self) -> None:
        """Ends the lanes. DDP cannot drop a hook: the next backward pass raises, unless attach() is called again."""
        self._close_lanes()
        model = self._model()
        if model is None:
            return
        slot = _slot_of(model)
        if slot is not None and slot.attachment is self:
            slot.attachment = None
            model.__dict__.pop("join_hook", None)

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Attachment cannot be pickled; save its state_dict() and load that into a new one")

    def check_usable(self) -> None:
        """Raises StateError after close() or a failure."""
        if not self._close_lanes.alive:
            raise _native.StateError("this attachment is closed")
        if (error := self._lanes.failure.error) is not None:
            raise _native.StateError(
                f"this attachment is of no further use, since it failed ({type(error).__name__}: {error}). Restart from a checkpoint"
            ) from error

    def _begin_step(self) -> None:
        self.check_usable()
        self._loss_scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        self._jobs = []
        # Called before DDP's own callback, which would turn every exception into a RuntimeError. (In a static graph's
        # first iteration DDP comes first, and does.)
        Variable._execution_engine.queue_callback(self._finish_step)

    def _finish_step(self) -> None:
        for job in self._jobs:
            job.done.wait()
            job.result()
        self._jobs = []

    def _wait_for_lanes(self) -> None:
        """After a failure: the first error ended the backward pass, and other lanes may be at work still."""
        for job in self._jobs:
            job.done.wait()


class HookSlot:
    """What DDP holds for good; an attachment can be taken out of it and another put in."""

    def __init__(self) -> None:
        self.attachment: Attachment | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a model with thinwire attached cannot be pickled; save ddp_model.module and the attachment's state_dict()")


def check_before_forward(model: DistributedDataParallel, _: Any) -> None:
    """A forward pre-hook: after a failure DDP itself is in disorder, and would complain of something else."""
    slot = _slot_of(model)
    if slot is not None and slot.attachment is not None and torch.is_grad_enabled():
        slot.attachment.check_usable()


def average_bucket(slot: HookSlot, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook."""
    if slot.attachment is None:
        raise _native.StateError("thinwire was closed on this model; attach() it again, or wrap the module in a new DDP")
    return slot.attachment.average(bucket)


def _free_slot(ddp_model: DistributedDataParallel) -> HookSlot:
    """The slot of an attachment that was closed, or a new one."""
    slot = _slot_of(ddp_model)
    if slot is not None and slot.attachment is not None:
        raise _native.ArgumentError("thinwire is attached to this model already; close() that attachment first")
    if slot is None and ddp_model._comm_hooks:
        raise _native.ArgumentError("this model has a communication hook already, and DDP allows one; wrap the module in a new DDP")
    return slot or HookSlot()


def _slot_of(ddp_model: DistributedDataParallel) -> HookSlot | None:
    return next((state for _, state in ddp_model._comm_hooks if isinstance(state, HookSlot)), None)


def _duration(timeout: float | timedelta) -> timedelta:
    duration = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    if duration <= timedelta(0):
        raise _native.ArgumentError(f"timeout = {timeout}; allowed: more than 0 seconds")
    return duration


def _terms(parameters: ModelParameters, reducer: _native.Reducer, seed: int) -> dict[str, Any]:
    """What must be the same on all workers, and when a state is loaded."""
    return {
        "parameters": dict(parameters.layout),
        "compressors": dict(zip(parameters.names, reducer.compressors, strict=True)),
        "seed": seed,
    }
