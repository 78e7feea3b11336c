"""PyTorch's own tests of DistributedDataParallel, out of the installed wheel, with thinwire attached to every DDP model. Those that
are meant for GPUs run on the host (host_as_device.py).

    .venv/bin/python tests/python/torch_ddp_tests.py [--compressors "none;bf16;casq:bits=8"] [--workers 2] [--tests PATTERN]

First every test runs as it is. Those that pass, make a DDP model and register no hook of their own then run once for each
compressor. What fails and is not expected to (EXPECTED, with reasons), or passes and is expected to fail, is an error.
"""

import argparse
import contextlib
import fnmatch
import inspect
import io
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

LIMIT = 60  # seconds for a test
COMPRESSORS = ["none", "bf16", "casq:bits=8"]

# What takes long to import, for all workers at once; not PyTorch's tests, which install() must come before.
PRELOADED = ["torch._dynamo", "torch.distributed.nn", "thinwire.torch", "torch.testing._internal.common_distributed"]

# What needs more of a GPU than memory: not run at all.
FOR_GPUS = ["*SyncBatchNorm*", "*apply_optim*", "*mixed_precision*", "*amp*", "*compile*", "*stream*", "*nccl*", "*gpu*", "*sync_bn*", "test_ddp_inference",
            "test_ddp_device"]

_JOIN = "join() is refused: a worker without inputs cannot take part in its peers' compressed exchanges"

# Why a test does not pass: (pattern of tests, pattern of compressors, reason).
EXPECTED = [
    ("test_ddp_grad_div_uneven_inputs", "*", _JOIN),
    ("test_ddp_join_model_equivalence", "*", _JOIN),
    ("test_ddp_join_respects_forward_sync_buffers_false", "*", _JOIN),
    ("test_ddp_uneven_input_exception", "*", _JOIN),
    ("test_ddp_logging_data_cpu", "[!n]*", "its model is of float64, which only none takes"),
    ("test_ddp_profiling_torch_profiler", "[!n]*", "looks for the collectives in the thread of the backward pass, and they run in lanes"),
]


class Workers:
    """Processes that run one test after another together; new ones after a failure."""

    def __init__(self, count):
        self._count = count
        self._processes, self._pipes = [], []

    def run(self, test, compressor):
        """(outcome, note): "passed", "skipped" or "failed", and why. Some tests leave a process in disorder, so that one which
        fails unexpectedly where others ran before is run again in new ones."""
        fresh = not self._processes
        outcome, note = self._run_once(test, compressor)
        final = outcome != "failed" or fresh or reason(test, compressor or "") is not None
        return (outcome, note) if final else self._run_once(test, compressor)

    def _run_once(self, test, compressor):
        if not self._processes:
            self._start()
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/barrier")
            os.mkdir(f"{folder}/test_dir")
            for pipe in self._pipes:
                pipe.send((test, compressor, folder))
            deadline = time.monotonic() + LIMIT
            answers = [self._answer(pipe, deadline) for pipe in self._pipes]
        outcome, note = max(answers, key=lambda answer: ["passed", "skipped", "failed"].index(answer[0]))
        if outcome == "failed":
            self.stop()
        return outcome, note

    def stop(self):
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []

    def _start(self):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        for rank in range(self._count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self._count, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def _answer(self, pipe, deadline):
        try:
            return pipe.recv() if pipe.poll(max(0.0, deadline - time.monotonic())) else ("failed", f"no answer after {LIMIT} seconds")
        except EOFError:
            return "failed", "the worker is dead"


class Watched:
    """What a test does with DDP models, and thinwire in all of them."""

    def __init__(self):
        from torch.nn.parallel import DistributedDataParallel as Model

        self.compressor, self.models, self.hooks = None, 0, 0
        construct, register, register_builtin = Model.__init__, Model.register_comm_hook, Model._register_builtin_comm_hook

        def constructed(model, *arguments, **options):
            construct(model, *arguments, **options)
            self.models += 1
            if self.compressor is not None:
                import thinwire.torch

                thinwire.torch.attach(model, self.compressor, lanes=2)

        def registered(model, *arguments, **options):
            self.hooks += 1
            return register(model, *arguments, **options)

        def registered_builtin(model, *arguments, **options):
            self.hooks += 1
            return register_builtin(model, *arguments, **options)

        Model.__init__, Model.register_comm_hook, Model._register_builtin_comm_hook = constructed, registered, registered_builtin

    def begin(self, compressor):
        self.compressor, self.models, self.hooks = compressor, 0, 0


def _prepare(world_size):
    """PyTorch's tests read what they need from the environment when they are imported."""
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1", "TEMP_DIR": tempfile.gettempdir()}


def _cases():
    from torch.testing._internal.distributed import distributed_test

    class Cases(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    return Cases


def _serve(rank, world_size, pipe):
    _prepare(world_size)
    from host_as_device import install

    log = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    import torch

    torch.set_num_threads(1)
    host_as_device = install()
    cases, watched = _cases(), Watched()
    while True:
        test, compressor, folder = pipe.recv()
        watched.begin(compressor)
        with host_as_device():
            pipe.send(_outcome(cases, watched, test, rank, world_size, folder))


def _outcome(cases, watched, test, rank, world_size, folder):
    import unittest
    from datetime import timedelta

    import torch.distributed as dist
    from torch.testing._internal import common_utils
    from torch.testing._internal.distributed.distributed_test import Barrier

    os.environ["TEMP_DIR"] = folder
    case = cases(test)
    case.rank, case.file_name = rank, f"{folder}/store"
    Barrier.barrier_id = 0
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size, timeout=timedelta(seconds=30))
        dist.barrier()  # or a worker that skips leaves before its peers have found it
        common_utils.set_rng_seed()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            getattr(case, test)()
        case._barrier()
        dist.destroy_process_group()
    except unittest.SkipTest as skipped:
        dist.destroy_process_group()
        return "skipped", str(skipped)
    except SystemExit as left:  # how decorators of these tests skip
        dist.destroy_process_group()
        return "skipped", f"exit status {left.code}"
    except BaseException as error:
        return "failed", " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return "passed", {"models": watched.models, "hooks": watched.hooks}


def tests_with_ddp():
    """Names of the tests whose code speaks of DDP, and that a host can run."""
    cases = _cases()
    names = [name for name in dir(cases) if name.startswith("test_")]
    names = [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in FOR_GPUS)]
    sources = {name: inspect.getsource(inspect.unwrap(getattr(cases, name))) for name in names}
    return [name for name in names if "ddp" in sources[name].lower() or "DistributedDataParallel" in sources[name]]


def reason(test, compressor):
    """Why the test is expected to fail, or None."""
    return next((why for tests, specs, why in EXPECTED if fnmatch.fnmatch(test, tests) and fnmatch.fnmatch(compressor, specs)), None)


def run(tests, compressors, workers, say=print):
    """Sentences on what went otherwise than expected."""
    team = Workers(workers)
    try:
        plain = {}
        for test in tests:
            plain[test] = outcome, note = team.run(test, None)
            if outcome == "failed":
                say(f"plain: {test} failed: {note}")
        served = [test for test, (outcome, note) in plain.items() if outcome == "passed" and note["models"] and not note["hooks"]]
        own_hook = sum(1 for outcome, note in plain.values() if outcome == "passed" and note["hooks"])
        counts = {what: sum(outcome == what for outcome, _ in plain.values()) for what in ("passed", "skipped", "failed")}
        say(f"plain: {counts}; {own_hook} register a hook of their own, {len(served)} are run with thinwire")
        wrong = []
        for compressor in compressors:
            failed = 0
            for test in served:
                outcome, note = team.run(test, compressor)
                failed += outcome == "failed"
                if (outcome == "failed") != (reason(test, compressor) is not None):
                    wrong.append(f"{compressor}: {test} {outcome}: {note if outcome == 'failed' else reason(test, compressor)}")
                    say(wrong[-1])
            say(f"{compressor}: {len(served) - failed} of {len(served)} pass, {failed} fail")
        return wrong
    finally:
        team.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compressors", default=";".join(COMPRESSORS), help="specs, divided by semicolons")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tests", default="*", metavar="PATTERN", help="only tests whose names match")
    options = parser.parse_args()
    _prepare(options.workers)
    tests = fnmatch.filter(tests_with_ddp(), options.tests)
    return 1 if run(tests, options.compressors.split(";"), options.workers, lambda text: print(text, flush=True)) else 0


if __name__ == "__main__":
    sys.exit(main())
