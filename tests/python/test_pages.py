"""The code of README.md and of the documentation's other pages: commands and Python run, C++ compiles, and specs are specs.

What would take minutes runs shortened, by the options added here. Measurements, and examples that test_examples.py runs, are
looked up: their options must be in their help. Python that speaks of a ddp_model, a trainer or an accelerator is a fragment of a training
script, and is only compiled.
"""

import functools
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import mpi
import numpy
import pytest
from preloaded_python import preloaded_python

import thinwire

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import text  # noqa: E402

PAGES = ["README.md", "CONTRIBUTING.md", "bench/training/README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
LOOKED_UP = re.compile(r"\./|build/thinwire plan --measured|.*-m bench\.|.*examples/(with_fsdp2|local_steps|restart)|.*scripts/|mpirun -n 16")
PROGRAM = re.compile(r"(\./\S+|-m bench\S+|examples/\S+|scripts/\S+|build/thinwire \w+)(.*)")
OPTIONS = {"torchrun --nproc-per-node 2 examples/train_fashion_mnist.py": " --train-limit 640",
           "torchrun --nproc-per-node 2 examples/train_language_model.py": " --steps 2 --batch 2 --test-limit 8",
           "torchrun --nproc-per-node 2 examples/train_recommender.py": " --steps 2",
           "python -m pip install": " --dry-run --no-deps --no-build-isolation --no-index",
           "build/thinwire bench": " --elements 100000 --repetitions 1",
           "build/thinwire plan --link 1gbit --workers 4": " --elements 300000",
           "mpirun -n 4 build/thinwire": " --elements 300000 --repetitions 1"}


def blocks(language: str) -> list[str]:
    """All different ones of the pages, those in lists among them."""
    fence = re.compile(rf"^( *)```{language}\n(.*?)^\1```", re.M | re.S)
    found = (match[2] for page in PAGES for match in fence.finditer((ROOT / page).read_text()))
    return list(dict.fromkeys(map(textwrap.dedent, found)))


def commands() -> list[str]:
    lines = (line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines())
    return list(dict.fromkeys(line for line in lines if line))


def shortened(command: str) -> str:
    return command + next((extra for start, extra in OPTIONS.items() if command.startswith(start)), "")


def environment() -> dict[str, str]:
    path = f"{ROOT}/.venv/bin:{os.environ['PATH']}"
    return {**os.environ, **mpi.ENVIRONMENT, "PATH": path, "PYTHON_EXEC": preloaded_python()}  # what torchrun starts


def output(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@functools.cache
def options_of(program: str) -> set[str]:
    words = shlex.split(program)
    python = [preloaded_python()] if words[0] == "-m" or words[0].endswith(".py") else []
    return set(re.findall(r"--[a-z][\w-]*", output([*python, *words, "--help"])))


@pytest.fixture(scope="module")
def files() -> Iterator[None]:
    """Those that commands call g.npy and model.json."""
    numpy.save(ROOT / "g.npy", numpy.random.default_rng(0).laplace(size=(2, 1000)).astype("float32"))
    (ROOT / "model.json").write_text('[{"name": "weight", "shape": [500, 600], "offset": 0}]')
    yield
    for made in ("g.npy", "gradient.html", "model.json"):
        (ROOT / made).unlink(missing_ok=True)


@pytest.mark.parametrize("command", commands())
def test_command(command: str, files: None) -> None:
    if "language_model" in command and not text.installed():
        pytest.skip("no text here to train on")
    if command.startswith("mpirun") and not mpi.is_built_into(f"{ROOT}/build/thinwire"):
        pytest.skip("no Open MPI here when this was built")
    if LOOKED_UP.match(command):
        program, arguments = PROGRAM.search(command).groups()
        assert set(re.findall(r"--[a-z][\w-]*", arguments)) <= options_of(program)
        return
    output(["env", *shlex.split(shortened(command))])


@pytest.mark.parametrize("code", blocks("python"))
def test_python(code: str, tmp_path: Path) -> None:
    if re.search("ddp_model|trainer|accelerator", code):
        compile(code, "a page", "exec")
        return
    script = tmp_path / "script.py"
    script.write_text(code)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if "init_process_group" in code else []
    subprocess.run([preloaded_python(), *torchrun, script], check=True, cwd=tmp_path, timeout=120)


@pytest.mark.parametrize("code", blocks("cpp"))
def test_cpp(code: str) -> None:
    if "..." in code:  # an excerpt: its lines stand in a source file, in this order
        lines = [re.escape(line) for line in code.splitlines() if line.strip() != "..."]
        excerpt = re.compile("^" + "\n(?:.*\n)*?".join(lines) + "$", re.M)
        assert any(excerpt.search(file.read_text()) for file in (ROOT / "src").rglob("*.cc"))
        return
    given = ("const thinwire::Layout& layout, int rank, std::span<const thinwire::ParameterGradient> gradients, "
             "thinwire::Communicator& communicator")
    source = f'#include "thinwire/thinwire.h"\nvoid average({given}) {{\n{code}}}\n'
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", f"-I{ROOT}/include", "-x", "c++", "-"]
    subprocess.run(compiler, input=source, text=True, check=True)


def test_specs() -> None:
    """Those in text and tables, and on lines of their own."""
    name = "|".join(row["name"] for row in thinwire.compressors())
    spec = rf"(?:{name}):\w+=[\w.,=:/-]*\w"
    found = {match for page in PAGES for match in re.findall(rf"`({spec})`|^    ({spec})$", (ROOT / page).read_text(), re.M)}
    specs = {one or other for one, other in found}
    for written in sorted(specs):
        if ".." not in written and not re.search("SPEC|=[A-Z]", written):  # ranges, and words that stand for others
            thinwire.canonical_spec(written)
    assert len(specs) > 30


def test_there_is_something_to_run() -> None:
    assert len(commands()) >= 25 and len(blocks("python")) >= 10


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target
