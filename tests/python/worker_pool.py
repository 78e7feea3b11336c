"""Processes that are the workers of a Gloo process group, and run what tests hand them.

Starting them costs seconds, so that tests share them: ``pool(3).run(check, argument)`` calls ``check(argument)`` on three
workers at once and returns what it returned on each, in rank order.
"""

import atexit
import gc
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

LIMIT = 120  # seconds for one task


class WorkerFailed(AssertionError):
    """A check failed on a worker; the text is its traceback."""


class WorkerPool:
    def __init__(self, world_size: int, timeout: float = 60):
        """timeout: seconds that torch's own collectives wait for a worker that is lost."""
        self._folder = tempfile.TemporaryDirectory(prefix="thinwire-test-")
        context = multiprocessing.get_context("forkserver")
        # What every DDP model imports is imported once, for all workers.
        context.set_forkserver_preload(["torch._dynamo", "torch.distributed.nn", "thinwire.torch"])
        self._pipes, self.processes = [], []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world_size, f"{self._folder.name}/store", timeout, theirs), daemon=True)
            process.start()
            theirs.close()  # so that a dead worker is an end of file here
            self._pipes.append(ours)
            self.processes.append(process)

    def run(self, check, *arguments):
        """What ``check(*arguments)`` returns on each worker. Raises WorkerFailed, after which the pool is gone."""
        self.begin(check, *arguments)
        answers = [self.answer(rank) for rank in range(len(self._pipes))]
        failures = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(answers) if text]
        if failures:
            self.kill()
            raise WorkerFailed("\n".join(failures))
        return [result for result, _ in answers]

    def begin(self, check, *arguments):
        for pipe in self._pipes:
            pipe.send((check, arguments))

    def answer(self, rank, limit=LIMIT):
        """(result, traceback or None) of one worker; one that is dead or late has a traceback that says so."""
        pipe = self._pipes[rank]
        try:
            return pipe.recv() if pipe.poll(limit) else (None, f"no answer after {limit} seconds")
        except EOFError:
            return None, "the worker is dead"

    def close(self, limit=10):
        """Lets the workers end by themselves. Returns their exit codes; None: had to be killed."""
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:
                pass
        deadline = time.monotonic() + limit
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in self.processes]
        self.kill()
        return codes

    def kill(self):
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                process.join()
        self._folder.cleanup()

    def is_alive(self):
        return all(process.is_alive() for process in self.processes)


_pools: dict[int, WorkerPool] = {}


def pool(world_size: int) -> WorkerPool:
    """The pool that tests share; a new one after a failure."""
    if world_size not in _pools or not _pools[world_size].is_alive():
        _pools[world_size] = WorkerPool(world_size)
        atexit.register(_pools[world_size].kill)
    return _pools[world_size]


def _serve(rank, world_size, store, timeout, pipe):
    gc.freeze()  # what was imported: every collection would walk it, and copy it from the server's memory
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout)
    )
    while (task := _next_task(pipe)) is not None:
        check, arguments = task
        try:
            pipe.send((check(*arguments), None))
        except BaseException:
            pipe.send((None, traceback.format_exc()))


def _next_task(pipe):
    try:
        return pipe.recv()
    except EOFError:
        return None
