"""Starts one process per worker, passes on what rank 0 reports, and ends them all, always."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.training import interrupts
from bench.training.network import Loopback, Namespaces
from bench.training.settings import Place, Settings

REPOSITORY = Path(__file__).resolve().parents[2]
_LAST_LINES = 20
_GRACE_SECONDS = 3
_PORT_IN_NAMESPACE = 29500


class WorkerDied(RuntimeError):
    """A worker ended before its work was done; the text holds its last lines."""


class Workers:
    """The worker processes, for as long as the `with` block lasts."""

    def __init__(self, settings: Settings, network: Loopback | Namespaces, logs: Path,
                 finished: list[tuple[int, str]]) -> None:
        self._settings, self._network = settings, network
        self._logs, self._finished = logs, finished
        self._processes: list[subprocess.Popen] = []
        self._messages: queue.Queue = queue.Queue()  # dict: an event; (rank, code): an end

    def __enter__(self) -> "Workers":
        self._logs.mkdir(parents=True, exist_ok=True)
        reading, writing = os.pipe()
        port = _PORT_IN_NAMESPACE if self._network.own_counters else _free_port()
        try:
            for rank in range(self._settings.workers):
                self._processes.append(self._start(rank, port, writing))
        except BaseException:
            self._end()
            raise
        finally:
            os.close(writing)
        threading.Thread(target=self._read_events, args=(reading,), daemon=True).start()
        for rank, process in enumerate(self._processes):
            threading.Thread(target=self._await_end, args=(rank, process), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        with interrupts.held():
            self._end()

    def log(self, rank: int) -> Path:
        return self._logs / f"worker{rank}.log"

    def events(self) -> Iterator[dict]:
        """What rank 0 reports, until all workers have ended well; WorkerDied if one has not."""
        running = set(range(self._settings.workers))
        while running:
            message = self._messages.get()
            if isinstance(message, dict):
                yield message
                continue
            rank, code = message
            if code != 0:
                raise WorkerDied(self._obituary(rank, code))
            running.discard(rank)
        while not self._messages.empty():
            yield self._messages.get()

    def _start(self, rank: int, port: int, events: int) -> subprocess.Popen:
        workers = self._settings.workers
        threads = max(1, cores() // workers)
        place = Place(rank, [self._network.address(each) for each in range(workers)],
                      self._network.interface, port, self._network.own_counters, threads, events,
                      self._finished)
        command = [*self._network.command_prefix(rank), sys.executable, "-m",
                   "bench.training.worker", self._settings.to_json(), place.to_json()]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": self._network.interface,
                                    "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        with open(self.log(rank), "wb") as log:
            # A session of its own: Ctrl-C reaches the launcher alone, which then ends the workers.
            return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log,
                                    stderr=log, stdin=subprocess.DEVNULL, pass_fds=[events],
                                    start_new_session=True)

    def _read_events(self, descriptor: int) -> None:
        with os.fdopen(descriptor) as lines:
            for line in lines:
                self._messages.put(json.loads(line))

    def _await_end(self, rank: int, process: subprocess.Popen) -> None:
        self._messages.put((rank, process.wait()))

    def _end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in self._processes:
            try:
                process.wait(max(0.05, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # stopped, or deep in a library
                process.wait()

    def _obituary(self, rank: int, code: int) -> str:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines = self.log(rank).read_text(errors="replace").splitlines()[-_LAST_LINES:]
        said = "\n".join(f"    {line}" for line in lines) or "    (nothing)"
        return f"worker {rank} died ({how}); its last lines:\n{said}\n  all of it: {self.log(rank)}"


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
