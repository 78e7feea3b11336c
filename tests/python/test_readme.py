"""README's commands run, and the Python of README, docs/local_steps.md and docs/fsdp.md. What would take minutes runs shortened, by the options
added here."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mpi
import numpy
import pytest
from preloaded_python import preloaded_python

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import text  # noqa: E402

SHORTER = {
    "./run": "./run --help",
    "./test": "./test --help",
    "./run --link 100mbit": "./run --help",
    "./run --task language-model": "./run --help",
    "./run --task recommender": "./run --help",
    ".venv/bin/python -m bench.network": ".venv/bin/python -m bench.network --help",
}
OPTIONS = {"torchrun --nproc-per-node 2 examples/train_fashion_mnist.py": " --train-limit 640",
           "torchrun --nproc-per-node 2 examples/train_language_model.py": " --steps 2 --batch 2 --test-limit 8",
           "torchrun --nproc-per-node 2 examples/train_recommender.py": " --steps 2",
           "build/thinwire bench": " --elements 100000 --repetitions 1",
           "build/thinwire plan": " --elements 300000",
           "mpirun -n 4 build/thinwire": " --elements 300000 --repetitions 1"}


def blocks(language: str, file: str = "README.md") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / file).read_text(), re.M | re.S)


def commands() -> list[str]:
    lines = (line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines())
    return [line for line in lines if line]


def shortened(command: str) -> str:
    if command in SHORTER:
        return SHORTER[command]
    return command + next((extra for start, extra in OPTIONS.items() if command.startswith(start)), "")


@pytest.fixture(scope="module")
def gradient() -> Iterator[None]:
    """The file that commands call g.npy."""
    path = ROOT / "g.npy"
    numpy.save(path, numpy.random.default_rng(0).laplace(size=(2, 1000)).astype("float32"))
    yield
    for made in (path, ROOT / "gradient.html"):
        made.unlink(missing_ok=True)


@pytest.mark.parametrize("command", commands())
def test_command(command: str, gradient: None) -> None:
    if "language_model" in command and not text.installed():
        pytest.skip("no text here to train on")
    if command.startswith("mpirun") and not mpi.is_built_into(f"{ROOT}/build/thinwire"):
        pytest.skip("no Open MPI here when this was built")
    environment = {**os.environ, **mpi.ENVIRONMENT, "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
                   "PYTHON_EXEC": preloaded_python()}  # what torchrun starts
    done = subprocess.run(shlex.split(shortened(command)), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("code", blocks("python") + blocks("python", "docs/local_steps.md") + blocks("python", "docs/fsdp.md"))
def test_python(code: str, tmp_path: Path) -> None:
    if "ddp_model" in code:  # a fragment of a training script; examples/train_fashion_mnist.py is the whole
        compile(code, "README.md", "exec")
        return
    if "init_process_group" not in code:
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
        return
    script = tmp_path / "script.py"
    script.write_text(code)
    command = [preloaded_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=120)


def test_there_is_something_to_run() -> None:
    assert len(commands()) >= 5 and len(blocks("python")) >= 2


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
