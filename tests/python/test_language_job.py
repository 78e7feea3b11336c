"""The language model's task of ./run, its text, and its example."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from preloaded_python import preloaded_python

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from bench import text  # noqa: E402
from bench.sparse import rows  # noqa: E402
from bench.training import specs, table  # noqa: E402
from bench.training.language import SEQUENCE, Sequences  # noqa: E402


@pytest.fixture
def small_text(monkeypatch, tmp_path):
    (tmp_path / "b.txt").write_text("the cat, the dog")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.txt").write_text("the end")
    monkeypatch.setattr(text, "PYTHON_DOC", tmp_path)


def test_words_are_numbered_by_their_frequency(small_text):
    corpus = text.load("python-doc")
    assert corpus.vocabulary == 5 and list(corpus.words) == [0, 1, 0, 2, 3, 0, 4]


def test_missing_text_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(text, "PYTHON_DOC", tmp_path / "none")
    monkeypatch.setattr(text, "KING_JAMES", tmp_path / "none")
    with pytest.raises(ValueError, match="python3.11-doc"):
        text.load()


def test_sequences_follow_one_another():
    words = torch.arange(3 * SEQUENCE + 1)
    sequences = Sequences(words)
    before, following = sequences.batch(torch.tensor([0, 2]))
    assert len(sequences) == 3
    assert torch.equal(following, before + 1) and before[1, 0] == 2 * SEQUENCE


def test_specs_of_embeddings_and_of_all_else():
    assert specs.thinwire_specs("s2:mode=exact/casq:bits=2+none") == ("s2:mode=exact/casq:bits=2", "none")
    assert specs.thinwire_specs("casq:bits=2") == (None, "casq:bits=2")
    specs.check(["s2+none"])
    with pytest.raises(ValueError, match="nonsense"):
        specs.check(["s2+nonsense"])


def test_specs_of_local_steps():
    assert specs.split_specs("plain;local:every=30,overlap=5/casq:bits=2,reduce=scatter") == [
        "plain", "local:every=30,overlap=5/casq:bits=2,reduce=scatter"]
    assert specs.local_options("local:every=30,mixing=.5/s2+none") == {"every": 30, "mixing": 0.5}
    assert specs.thinwire_specs("local:every=30,mixing=.5/s2+none") == ("s2", "none")
    assert specs.local_options("casq:bits=2") is None
    for wrong in ("local:every=3", "local:fragments=2/none", "local:every=/none", "local:every=3,rate=a/none", "local:evry=3/none"):
        with pytest.raises(ValueError, match="expected local:every=H/SPEC"):
            specs.check([wrong])
    with pytest.raises(ValueError, match="nonsense"):
        specs.check(["local:every=3/nonsense"])


def test_the_table_tells_perplexity_relative_to_plain():
    row = {"task": "language-model", "compressor": "s2+none", "accuracy": 110.0, "accuracy_difference": 10.0,
           "accuracy_interval": 5.0, "wire_bytes_per_step": None, "arithmetic_bytes_per_step": 2e6, "row_bytes_per_step": 1e6,
           "step_seconds": 0.1, "speedup": 1.0, "seconds_to_same_loss": 1.0, "time_to_same_loss_ratio": 1.0}
    cells = table.cells([row])[0]
    assert cells[1:5] == ["110.00", "+10.00 % ±5.00", "2.00", "1.00"]
    assert all(len(line) <= table.WIDTH for line in table.render([row]).splitlines())


def test_gradients_have_the_rows_they_should():
    for kind in (rows.Independent(200, 0.1), rows.Zipf(200, 0.1)):
        gradient = rows.gradient(kind, 4, 0, 1)
        assert np.array_equal(np.flatnonzero(gradient.any(axis=1)), kind.used(0, 1))
        assert not np.array_equal(kind.used(0, 0), kind.used(1, 0))


def run(*command):
    return subprocess.run([preloaded_python(), *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=200,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.slow
@pytest.mark.skipif("king-james" not in text.installed(), reason="needs bible-kjv")
@pytest.mark.parametrize("sparse", [False, True])
def test_trains_with_dense_and_sparse_embeddings(tmp_path, sparse):
    compressors = "plain;s2+none;s2:mode=exact/casq:bits=2+casq:bits=2;local:every=2/none"
    out = run("-m", "bench.training", "--task", "language-model", "--data", "king-james", "--link", "none", "--workers", "2",
              "--train-limit", "128", "--batch", "8", "--epochs", "1", "--test-limit", "16", "--evaluations", "1",
              "--compressors", compressors, "--out", str(tmp_path), *(["--sparse-embedding"] if sparse else []))
    assert out.returncode == 0, out.stderr
    assert "perplexity" in out.stdout
    results = json.loads((tmp_path / "results.json").read_text())
    plain, lossless, quantized, _ = results["summary"]
    sent = [each["arithmetic_bytes"] for each in results["runs"]]
    assert sent[3] == pytest.approx(sent[0] / 2, rel=0.02)
    assert lossless["accuracy"] == pytest.approx(plain["accuracy"], rel=1e-3)
    assert lossless["row_bytes_per_step"] < 0.2 * plain["arithmetic_bytes_per_step"]
    assert quantized["arithmetic_bytes_per_step"] < 0.1 * plain["arithmetic_bytes_per_step"]
    report = (tmp_path / "report.html").read_text()
    assert "perplexity" in report and "accuracy" not in report.lower().replace("accuracies", "")


@pytest.mark.slow
@pytest.mark.skipif(not text.installed(), reason="needs a text")
def test_the_example_trains():
    for options in ([], ["--sparse", "--compressor", "s2", "--rest", "none"]):
        out = run("-m", "torch.distributed.run", "--nproc-per-node", "2", "examples/train_language_model.py", "--steps", "3",
                  "--batch", "4", "--test-limit", "8", *options)
        assert out.returncode == 0, out.stderr
        assert "perplexity" in out.stdout and "rows of the embedding" in out.stdout
