"""thinwire's one line for each trainer: trainings go on with the same bits, on other numbers of workers, and log what thinwire does."""

import json
import subprocess
from pathlib import Path

import pytest
from preloaded_python import TRAINERS, preloaded_python

MODULES = {"transformers": "transformers", "lightning": "pytorch_lightning", "accelerate": "accelerate"}
SCRIPT = Path(__file__).with_name("trainings.py")
LIMIT = 500  # seconds of a training: its trainer is imported first, on a busy machine

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(params=MODULES)
def trainer(request):
    pytest.importorskip(MODULES[request.param])
    return request.param


def train(trainer, folder, *arguments, workers=2):
    """What each training tells."""
    python = preloaded_python(*TRAINERS)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", workers] if workers > 1 else []
    command = [python, *torchrun, SCRIPT, trainer, folder, *arguments]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"digest"')]


def test_a_resumed_training_has_the_bits_of_a_whole_one(trainer, tmp_path):
    (whole,) = train(trainer, tmp_path / "whole", 6)
    first, second = train(trainer, tmp_path / "parts", 3, 6, "--again")
    assert not first["resumes"] and second["resumes"]
    assert first["digest"] != second["digest"] == whole["digest"]
    assert whole["logged"]["thinwire/ratio"] > 4 and whole["steps"] == 6


def test_without_its_state_it_would_not(tmp_path):
    """That residuals count, which the test above does not prove."""
    pytest.importorskip("transformers")
    (whole,) = train("transformers", tmp_path / "whole", 6)
    train("transformers", tmp_path / "parts", 3)
    (tmp_path / "parts/checkpoint-3/thinwire.pt").unlink()
    (without,) = train("transformers", tmp_path / "parts", 6)
    assert without["digest"] != whole["digest"]


def test_two_workers_then_one_then_two(trainer, tmp_path):
    train(trainer, tmp_path, 3)
    (alone,) = train(trainer, tmp_path, 6, workers=1)
    assert alone["resumes"] and alone["steps"] is None and alone["logged"] == {} and alone["saved"]
    (both,) = train(trainer, tmp_path, 9)
    assert both["resumes"] and both["steps"] == 3
