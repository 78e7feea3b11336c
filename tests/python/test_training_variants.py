"""What ./run puts before a compressor: momentum correction, and a warm-up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from preloaded_python import preloaded_python
from test_training_job import needs_data
from torch import nn

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from bench.training import corrected_momentum, specs  # noqa: E402

JOB = [preloaded_python(), "-m", "bench.training"]


def test_corrected_momentum_without_compression_is_the_optimizers():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=1e-2, nesterov=True) for model in (ours, theirs)]
    corrected_momentum.take_from(optimizers[0])
    for _ in range(6):
        inputs = torch.randn(4, 5)
        for model, optimizer in zip((ours, theirs), optimizers):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(mine, other)
    assert specs.corrects_momentum("momentum:casq:rate=0.1") and specs.thinwire_specs("momentum:casq:rate=0.1") == (None, "casq:rate=0.1")


def test_a_warm_up_has_another_compressor_first():
    spec = "warm-up:47/momentum:casq:rate=0.1"
    assert (specs.warm_up_steps(spec), specs.thinwire_specs(spec)) == (47, (None, "casq:rate=0.1")) and specs.corrects_momentum(spec)
    assert specs.warm_up_steps("casq:rate=0.1") == 0 and specs.split_specs(f"plain;{spec}") == ["plain", spec]


@pytest.mark.parametrize("spec, told", [("warm-up:0/none", "warm-up:0/none"), ("momentum:dgc:density=0.1", "has the momentum already"),
                                        ("warm-up:3/momentum:signum", "has the momentum already")])
def test_what_makes_no_sense_is_refused(spec, told):
    with pytest.raises(ValueError, match=told):
        specs.check([spec])


def test_momentum_correction_is_for_sgd():
    job = subprocess.run([*JOB, "--task", "language-model", "--compressors", "momentum:none", "--link", "none"], cwd=REPOSITORY,
                         capture_output=True, text=True, timeout=120)
    assert job.returncode == 2 and "Adagrad" in job.stderr


@needs_data
def test_a_warm_up_ends(tmp_path):
    small = ["--workers", "2", "--train-limit", "64", "--batch", "8", "--test-limit", "50", "--epochs", "1"]  # four steps
    spec = "warm-up:1/momentum:casq:rate=0.25"
    job = subprocess.run([*JOB, *small, "--link", "none", "--compressors", f"plain;{spec}", "--out", str(tmp_path)], cwd=REPOSITORY,
                         capture_output=True, text=True, timeout=240)
    assert job.returncode == 0, job.stderr
    plain, warmed_up = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert (plain["steps"], warmed_up["steps"], warmed_up["compressor_stats"]["steps"]) == (4, 4, 3)
    assert warmed_up["losses"][0] == plain["losses"][0] and warmed_up["losses"][1:] != plain["losses"][1:]
