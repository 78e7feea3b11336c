"""thinwire at work on a DDP model: what attach() returns."""

import math
import time
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch._C._profiler import _RecordFunctionFast as RecordFunction
from torch.nn.parallel import DistributedDataParallel

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from thinwire import _native
from thinwire.torch import checkpoint
from thinwire.torch.agreement import Scaler
from thinwire.torch.auto import Auto
from thinwire.torch.averager import Averager
from thinwire.torch.hook_slot import slot_of
from thinwire.torch.lanes import BucketJob, Lanes, new_future, peer_error
from thinwire.torch.model_parameters import ModelParameters
from thinwire.torch.search import PLAIN
from thinwire.torch.sparse_bucket import DenseForms, SparseBucket
from thinwire.torch.step_clock import StepClock, TimedStep

Future = torch.futures.Future[torch.Tensor]


class Attachment(Averager):
    """thinwire at work on one DDP model. Made by attach(); works until close() or until the model is gone."""

    _called = "attachment"

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        parameters: ModelParameters,
        reducer: _native.Reducer,
        lanes: Lanes,
        scaler: Scaler | None,
        terms: dict[str, Any],
        spec: str,
        auto: Auto | None = None,
        *,
        rules: Sequence[tuple[str, str]] = (),
        sums_plainly: bool = False,
    ):
        """rules: as they were given. sums_plainly: nothing is compressed, so that buckets are summed as they are."""
        super().__init__(ddp_model.process_group, parameters, reducer, lanes, terms, spec, owner=ddp_model)
        # The model holds the hook, and so the attachment, from C++, where no garbage collector looks.
        self._model = weakref.ref(ddp_model)
        self._scaler = scaler
        self._backward: int | None = None  # the step's, from whichever bucket DDP hands over first to its end
        self._loss_scale = 1.0
        self._dense_forms = DenseForms()
        self._jobs: list[BucketJob] = []  # of the backward pass under way
        self._auto = auto
        self._rules = list(rules)
        self._sums_plainly = sums_plainly
        if auto is not None:
            auto.start(lanes)
        # What ends it, what DDP waits for, and the bucket. A callback of the first that sets the second would take the backward pass time.
        self._plain_sums_under_way: list[tuple[Any, Future, torch.Tensor]] = []
        self._clock = StepClock(parameters.any_on_device)
        self._last_step: TimedStep | None = None  # that was begun, of which the search is told when the next one begins

    def average(self, bucket: dist.GradBucket) -> Future:
        """Sends a bucket on its way to the mean, which replaces its gradients, in their dtype."""
        self._enter_step()
        buffer = bucket.buffer()
        if self._world_size == 1:
            return _done(buffer)
        if self._sums_plainly and self._lanes.are_connected and not buffer.is_sparse and not self._parameters.any_on_device:
            return self._send(bucket.index(), BucketJob(self._reducer, True, buffer, [], 1.0, looks=False))
        if self._sums_plainly or (self._auto is not None and self._auto.is_plain and self._auto.is_decided):
            return self._average_plainly(bucket)
        parameters = self._parameters.indices(bucket.parameters())
        if self._auto is not None:
            self._clock.add_bucket(buffer, parameters)
            self._auto.see(buffer, parameters)
            if self._auto.is_plain:
                return self._average_plainly(bucket)
        is_plain = not self._parameters.suit_the_reducer(parameters)
        sparse = SparseBucket(buffer, parameters[0], self._dense_forms) if buffer.is_sparse else None
        if self._auto is not None and self._auto.owed:
            self._auto.add_owed(sparse.flat if sparse else buffer, parameters)
        flat = sparse.flat if sparse else buffer
        return self._send(bucket.index(), BucketJob(self._reducer, is_plain, flat, parameters, self._loss_scale, sparse=sparse))

    def _send(self, index: int, job: BucketJob) -> Future:
        self._jobs.append(job)
        self._lanes.submit(index, job)
        return job.future

    def _average_plainly(self, bucket: dist.GradBucket) -> Future:
        """As DDP does without a hook, but that Gloo waits for as long as lanes do."""
        buffer = bucket.buffer()
        group = self._group if self._parameters.any_on_device else self._lanes.group
        model = self._model()
        try:
            if group is None:
                raise RuntimeError("the group was left after a failure")
            if buffer.is_sparse or model is None or model.static_graph:  # DDP may look for the sum before the backward pass's end
                future = allreduce_hook(group, bucket)
                work = future
            else:
                buffer.div_(self._world_size)
                summed = torch.view_as_real(buffer) if buffer.is_complex() else buffer
                work = group.allreduce([summed], dist.AllreduceOptions())
                future = new_future(buffer)
        except RuntimeError as error:  # told at the end of the backward pass: DDP cannot bear a hook that raises
            self._lanes.failure.set(peer_error("all-reduce", error))
            work = future = _done(buffer)
        self._lanes.plain_sums.count(buffer)
        self._plain_sums_under_way.append((work, future, buffer))
        return future

    @property
    def _canonical_spec(self) -> str:
        return "none" if self.spec == PLAIN else super()._canonical_spec

    @property
    def spec(self) -> str:
        """By which all travels that no rule names and that is not small: what attach() was given, or what ``auto`` does at the moment;
        "plain": all-reduce, as DDP does without a hook."""
        return super().spec if self._auto is None else self._auto.spec

    @property
    def rules(self) -> list[tuple[str, str]]:
        """By which some parameters travel otherwise, pairs of pattern and spec: those that attach() was given, and behind them those that
        ``auto`` has found for the spec at work. ``attach(model, attachment.spec, rules=attachment.rules)`` repeats what it does, unless that is
        "plain"."""
        return [*self._rules, *([] if self._auto is None else self._auto.rules)]

    @property
    def lanes(self) -> int:
        """How many buckets travel at once, at most, where something is compressed; none of a worker that is alone."""
        return len(self._lanes)

    def stats(self) -> dict[str, Any]:
        """This worker's figures since attach().

        steps; reductions (of buckets); rounds (collectives, between hosts where there are any); setup_bytes, payload_bytes,
        second_bytes (first and second encodings); traffic_bytes (sent, by the collectives' standard algorithms); plain_bytes (what ring
        all-reduce would have sent uncompressed); ratio = plain_bytes / traffic_bytes; compressed_share (of the elements);
        compression_error = ``|encoded - decoded|^2 / |encoded|^2`` where it was measured; row_bytes (of traffic_bytes, what
        compressors of sparse rows sent); fallbacks (messages so dense that these sent them uncompressed); non_finite (buckets
        with NaN or infinity on some worker); failed_steps; seconds of each phase, summed over lanes: setup, encode, wire,
        decode. Where nothing is compressed nobody looks for NaN, and where then the backend sums, wire is what backward passes waited for at
        their end.
        A quotient that is undefined is None. With ``auto`` also auto: quality, phase ("watching", "trying", "decided"), spec at work, searches begun, measured
        seconds of a step by spec, prospects (spec, predicted seconds, error, bits, by_rows: whether of parameters
        of which few rows are used these alone travel), used_rows (the share of rows, by name of such a parameter), rules (that
        were found, and hold for the spec at work).
        """
        return super().stats() | ({} if self._auto is None else {"auto": self._auto.figures()})

    def __str__(self) -> str:
        return super().__str__() + ("" if self._auto is None else f"\n{self._auto}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from this worker's own state, or from its part of the state of all ranks: see Averager.load_state_dict().

        What travels in all-gather or all-to-all (CASQ, and QSGD by default) continues with the same bits. Floats that are
        all-reduced ("none", "bf16", small parameters) do so with two workers; with more, the order in which they are summed
        depends on their place in DDP's buckets, which DDP orders anew after a run's first step, so that the last bits of
        the first step's sums may differ, as they do under plain DDP.
        """
        super().load_state_dict(state)

    def close(self) -> None:
        """Ends the lanes. DDP cannot drop a hook: the next forward pass that wants gradients raises, unless attach() is called
        again."""
        super().close()
        model = self._model()
        slot = None if model is None else slot_of(model)
        if slot is not None and slot.attachment is self:
            failed = "thinwire failed on this model, and DDP cannot recover from that; wrap the module in a new DDP"
            slot.empty(model, failed if self._lanes.failure.error is not None else None)

    def check_usable(self) -> None:
        """Raises StateError after close() or a failure, or when the model has another process group."""
        super().check_usable()
        model = self._model()
        if model is not None and model.process_group is not self._group:
            raise _native.StateError("the model has another process group than when thinwire was attached; close() and attach() again")

    def _enter_step(self) -> None:
        """With the first bucket of a backward pass."""
        backward = torch._C._current_graph_task_id()
        if self._backward == backward:
            return
        self.check_usable()
        self._settle()
        self._loss_scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        self._jobs = []
        if self._auto is not None and self._world_size > 1:
            self._search_on(self._auto)
        self._backward = backward
        self._reducer.begin_step()
        # Called before DDP's own callback, which would turn every exception into a RuntimeError. (In a static graph's
        # first iteration DDP comes first, and does.)
        Variable._execution_engine.queue_callback(self._finish_backward)

    def _search_on(self, auto: Auto) -> None:
        """When all workers begin a step, so that they search alike even where one of them did not finish the last one."""
        if self._last_step is not None:
            auto.search_on(self._last_step)
            self._reducer = auto.reducer
        self._last_step = TimedStep()
        auto.begin_step(self._loss_scale)

    def _finish_backward(self) -> None:
        if self._auto is not None:
            self._clock.computed(exactly=not self._auto.is_decided)
        with RecordFunction("thinwire::wait"):
            self._wait_for_buckets()
        jobs, any_plain = self._jobs, bool(self._plain_sums_under_way)
        committed = self._end_step()
        for job in jobs:
            job.check()
        if any_plain:
            self._lanes.failure.check()
        if not committed and self._scaler is None:
            self._void_means(jobs)
        self._steps += 1
        if self._auto is not None:
            self._last_step = self._clock.end(exactly=not self._auto.is_decided)

    def _wait_for_buckets(self) -> None:
        for job in self._jobs:
            job.wait()
        begin = time.perf_counter()
        for work, future, buffer in self._plain_sums_under_way:
            try:
                work.wait()
            except RuntimeError as error:
                self._lanes.failure.set(peer_error("all-reduce", error))
            if work is not future:
                future.set_result(buffer)
        if self._plain_sums_under_way:
            self._lanes.plain_sums.waited(time.perf_counter() - begin)

    def _end_step(self) -> bool:
        """Commits what the step has changed, or drops it. No lane is at work on it."""
        self._backward = None
        committed = self._reducer.end_step()
        if self._auto is not None:
            self._auto.settle(committed)
        for job in self._jobs:
            if job.sparse is not None:
                job.sparse.release(committed)
        self._jobs, self._plain_sums_under_way = [], []
        return committed

    def _void_means(self, jobs: list[BucketJob]) -> None:
        """Nobody looks whether gradients are finite, perhaps: a NaN in every parameter's mean tells an optimizer's update that the
        step has failed. What the means held goes out again with the next one."""
        for job in jobs:
            if job.sparse is not None:
                job.sparse.mean._values().view(-1)[:1] = math.nan
                continue
            begin = 0
            for parameter in job.parameters:
                elements = self._parameters.elements[parameter]
                job.bucket[begin : begin + min(elements, 1)] = math.nan
                begin += elements
        model = self._model()
        # A static graph's first iteration has copied the buckets already.
        for parameter in model.parameters() if model is not None else ():
            if parameter.requires_grad and parameter.grad is not None:
                gradient = parameter.grad
                (gradient._values() if gradient.is_sparse else gradient).view(-1)[:1] = math.nan

    def _counters(self) -> dict[str, Any]:
        return super()._counters() if self._auto is None else self._auto.counters()

    def _rows(self) -> list[checkpoint.Row]:
        return super()._rows() if self._auto is None else self._auto.rows()

    def _division(self) -> checkpoint.Division:
        return super()._division() if self._auto is None else checkpoint.Division(self._reducer.hosts, self._auto.parts())

    def _load_rows(self, rows: list[checkpoint.Row], parts: list[checkpoint.Part], state: dict[str, Any]) -> None:
        if self._auto is None:
            super()._load_rows(rows, parts, state)
            return
        self._auto.load(state["auto"], rows, parts)
        self._reducer = self._auto.reducer

    def _common_state(self) -> dict[str, Any]:
        return {} if self._auto is None else {"auto": self._auto.state()}

    def _load_common_state(self, state: dict[str, Any]) -> None:
        if self._auto is not None and "auto" not in state:
            raise _native.StateError("this is no state of an attachment with auto")

    def _settle(self) -> None:
        """After a backward pass that ended in an exception: other lanes may be at work still, and its step has not ended."""
        self._wait_for_buckets()
        if self._backward is not None:
            self._end_step()


def _done(bucket: torch.Tensor) -> Future:
    future = new_future(bucket)
    future.set_result(bucket)
    return future
