"""Progress while a job runs: one line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

_PLAIN_SECONDS = 10.0  # between lines where they cannot be rewritten


class Progress:
    """Shows where the job is and, as soon as it can tell, when it will be done."""

    def __init__(self, trainings: int, output: TextIO = sys.stdout) -> None:
        self._trainings = trainings
        self._output = output
        self._rewrites = output.isatty()
        self._ended = 0
        self._shown_at = 0.0
        self._began = self._first_began = time.monotonic()
        self._first_step: tuple[int, float] | None = None  # of this training, and when
        self._line_open = False

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        print(text, file=self._output, flush=True)

    def waiting(self, text: str) -> None:
        """A line that the next one replaces on a terminal."""
        self._show(text)

    def begin(self) -> None:
        """A training begins."""
        self._began = time.monotonic()
        self._first_step = None
        if self._ended == 0:
            self._first_began = self._began

    def step(self, name: str, seed: int, step: int, steps: int, loss: float) -> None:
        now = time.monotonic()
        self._first_step = self._first_step or (step, now)
        if self._rewrites or now - self._shown_at >= _PLAIN_SECONDS:
            self._show(f"[{self._ended + 1}/{self._trainings}] {name}, seed {seed}: "
                       f"step {step}/{steps}, loss {loss:.3f}{self._time_left(now, step, steps)}")

    def end(self, text: str) -> None:
        """A training has ended."""
        self._ended += 1
        self.say(f"[{self._ended}/{self._trainings}] {text}")

    def _time_left(self, now: float, step: int, steps: int) -> str:
        """In words, as soon as a second step gives the pace; later trainings count as average."""
        first, at = self._first_step
        if step == first:
            return ""
        this_left = (now - at) / (step - first) * (steps - step)
        this_all = now - self._began + this_left
        average = (self._began - self._first_began + this_all) / (self._ended + 1)
        return f", {_clock(this_left + average * (self._trainings - self._ended - 1))} left"

    def _show(self, text: str) -> None:
        self._shown_at = time.monotonic()
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{text[:width]}", end="", file=self._output, flush=True)
            self._line_open = True
        else:
            print(text, file=self._output, flush=True)

    def _clear(self) -> None:
        if self._line_open:
            print("\r\033[K", end="", file=self._output)
            self._line_open = False


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
