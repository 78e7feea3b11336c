"""The examples for other libraries train, save, and go on where they stopped."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from preloaded_python import TRAINERS, preloaded_python

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 500  # seconds of an example: its library is imported first, on a busy machine

pytestmark = pytest.mark.timeout(3 * LIMIT)


# Workers that are started again want a store of their own (docs/pytorch.md), at a port that was free a moment ago. Others have torchrun's.
RESTARTED = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def torchrun(*arguments, workers=2, modules=(), environment=None):
    command = [preloaded_python(*modules), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("script", "package", "workers"),
    [
        ("checkpoint_distributed.py", "torch", 3),
        ("with_accelerate.py", "accelerate", 2),
        ("with_trainer.py", "transformers", 2),
        ("with_lightning.py", "pytorch_lightning", 2),
        ("local_steps.py", "torch", 2),
        ("with_fsdp2.py", "torch", 2),
    ],
)
def test_an_example_trains_and_resumes(tmp_path, script, package, workers):
    pytest.importorskip(package)
    folder = tmp_path / "checkpoint"
    modules = TRAINERS if package in TRAINERS else ()
    first = torchrun(ROOT / "examples" / script, "--steps", 4, "--folder", folder, modules=modules)
    assert "saved step 4" in first and "resumes" not in first
    second = torchrun(ROOT / "examples" / script, "--steps", 6, "--folder", folder, workers=workers, modules=modules)
    assert "rank 1 resumes at step 4" in second and "saved step 6" in second


def test_fsdp2_between_replicas(tmp_path):
    command = [ROOT / "examples/with_fsdp2.py", "--replicas", 2, "--folder", tmp_path]
    assert "saved step 3" in torchrun(*command, "--steps", 3, workers=4)
    assert "rank 3 resumes at step 3" in torchrun(*command, "--steps", 4, workers=4)


def test_fsdp2_that_gathers_changes(tmp_path):
    """What resumes ends with the loss of what was not interrupted."""
    command = [ROOT / "examples/with_fsdp2.py", "--gathers", "casq:bits=4"]
    whole = torchrun(*command, "--folder", tmp_path / "whole", "--steps", 6)
    torchrun(*command, "--folder", tmp_path / "parts", "--steps", 4)
    resumed = torchrun(*command, "--folder", tmp_path / "parts", "--steps", 6)
    ends = [re.findall(r"saved step 6, loss ([\d.]+)", said) for said in (whole, resumed)]
    assert len(ends[0]) == 2 and sorted(ends[0]) == sorted(ends[1])
    assert "gathered" in whole and "rank 1 resumes at step 4" in resumed


def test_auto_decides_and_says_so():
    said = torchrun(ROOT / "examples/with_auto.py")
    assert re.search(r"auto:quality=safe has decided for (plain|none|bf16|casq)", said)
    assert "step 60" in said


def test_a_training_goes_on_when_torchrun_starts_it_again(tmp_path):
    said = torchrun("--max-restarts", 1, ROOT / "examples/restart_with_torchrun.py", "--folder", tmp_path, "--lose-a-worker-at", 25, environment=RESTARTED)
    assert "rank 0 resumes at step 20" in said and "rank 1 resumes at step 20" in said
    assert len(re.findall("is done after step 40", said)) == 2


def test_a_training_goes_on_with_the_workers_that_are_left(tmp_path):
    """Of two machines, of two workers and of one, the second is lost."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        endpoint = f"localhost:{free.getsockname()[1]}"

    def machine(python, workers, conf, *options):
        command = [python, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", workers, "--max-restarts", 3,
                   "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "test",
                   "--rdzv-conf", f"{conf},last_call_timeout=10,keep_alive_interval=1",
                   ROOT / "examples/restart_with_torchrun.py", "--folder", tmp_path, *options]  # fmt: skip
        return subprocess.Popen([*map(str, command)], cwd=ROOT, env=RESTARTED, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    first = machine(preloaded_python(), 2, "is_host=1")
    second = machine(sys.executable, 1, "is_host=0", "--lose-this-machine-at", 25)  # by a worker, which kills its parent
    try:
        said, _ = first.communicate(timeout=LIMIT)
        assert second.wait(timeout=60) == -signal.SIGKILL, second.stdout.read()
    finally:
        first.kill()
        second.kill()
    assert first.returncode == 0, said
    assert "rank 0 resumes at step 20" in said and "rank 1 resumes at step 20" in said
    assert len(re.findall("is done after step 40", said)) == 2
