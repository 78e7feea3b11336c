"""When things happen in a worker's steps."""

import math
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import torch


class ReadyBucket(NamedTuple):
    seconds: float  # since the step's beginning
    elements: int
    parameters: list[int]
    is_sparse: bool = False


@dataclass
class TimedStep:
    """``begin``: of the script's step, which is the end of the backward pass before. NaN where there was none."""

    begin: float = math.nan  # by time.perf_counter()
    processor_begin: float = math.nan  # by time.process_time()
    ready: list[ReadyBucket] = field(default_factory=list)
    computed: float = math.nan  # seconds until the backward pass is over, but for buckets on their way
    processor: float = math.nan  # seconds of all the process's threads, until then, if that is wanted,
    processor_waiting: float = math.nan  # and from then on
    seconds: float | None = None  # until its means are there; None: it has not ended, or its beginning is not known

    @property
    def waiting(self) -> float:
        """Seconds for buckets on their way, when all else was computed."""
        return 0.0 if self.seconds is None else self.seconds - self.computed


class StepClock:
    """Times one step after another. ``on_device``: gradients are on a device, which works on while the host goes on.

    ``exactly``: waits for the device, and asks for the processor's time, which takes the system longer than its clock does."""

    def __init__(self, on_device: bool):
        self._on_device = on_device
        self.step = TimedStep()  # the one under way

    def add_bucket(self, bucket: torch.Tensor, parameters: list[int]) -> None:
        """That is ready."""
        self.step.ready.append(ReadyBucket(time.perf_counter() - self.step.begin, bucket.numel(), parameters, bucket.is_sparse))

    def computed(self, exactly: bool) -> None:
        """The backward pass is over."""
        if exactly and self._on_device:
            torch.cuda.current_stream().synchronize()
        self.step.computed = time.perf_counter() - self.step.begin
        if exactly:
            self.step.processor = time.process_time() - self.step.processor_begin

    def end(self, exactly: bool) -> TimedStep:
        """Its means are there; the next step begins."""
        if exactly and self._on_device:
            torch.cuda.synchronize()
        now, step = time.perf_counter(), self.step
        step.seconds = None if math.isnan(step.begin) else now - step.begin
        processor = time.process_time() if exactly else math.nan
        step.processor_waiting = processor - step.processor_begin - step.processor
        self.step = TimedStep(begin=now, processor_begin=processor)
        return step
