"""Recorded gradients come back as they were, and the tool reads them."""

import numpy
import pytest
import thinwire
import torch
from thinwire.torch import GradientRecorder, read_recording


def gradients_of(model, seed):
    torch.manual_seed(seed)
    model.zero_grad()
    model(torch.randn(8, 6)).square().mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).numpy().copy()


def test_gradients_come_back(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 1))
    expected = numpy.empty((3, 2, 41), numpy.float32)
    for rank in range(2):
        recorder = GradientRecorder(model, tmp_path, steps=3, rank=rank)
        for step in range(4):  # one more than there is room for
            gradient = gradients_of(model, 10 * rank + step)
            if step < 3:
                expected[step, rank] = gradient
            assert recorder.is_full == (step == 3)
            recorder.record()
    recorded, layout = read_recording(tmp_path)
    numpy.testing.assert_array_equal(recorded, expected)
    assert [(entry["name"], entry["shape"], entry["offset"]) for entry in layout] == [
        ("0.weight", [5, 6], 0), ("0.bias", [5], 30), ("1.weight", [1, 5], 35), ("1.bias", [1], 40)]  # fmt: skip
    thinwire.exchange(list(recorded[0]), "casq", layout=layout)


def test_some_parameters_and_missing_gradients(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 1))
    GradientRecorder(model, tmp_path, steps=1, names=["1.weight"]).record()
    recorded, layout = read_recording(tmp_path)
    assert recorded.shape == (1, 1, 5) and not recorded.any() and [entry["name"] for entry in layout] == ["1.weight"]


def test_what_cannot_be_is_refused(tmp_path):
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="'wight'.*weight, bias"):
        GradientRecorder(model, tmp_path, steps=1, names=["wight"])
    with pytest.raises(ValueError, match="steps is 0"):
        GradientRecorder(model, tmp_path, steps=0)
    with pytest.raises(ValueError, match="no gradients"):
        read_recording(tmp_path / "elsewhere")
