"""The recommender's task of ./run, its ratings, and its example."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from preloaded_python import preloaded_python

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from bench import ratings  # noqa: E402
from bench.training import table, tasks  # noqa: E402
from bench.training.recommender import Filter  # noqa: E402

RATED = {"userId": [7, 7, 3], "movieId": [40, 10, 40], "rating": [2.5, 4.0, 5.0]}


def write_r_package(folder: Path, objects: dict, length_error: int = 0) -> None:
    """Data as an installed R package holds them."""
    import rdata
    from rdata.conversion import convert_python_to_r_data
    from rdata.unparser import unparse_data

    content, places = b"", {}
    for name, value in objects.items():
        raw = unparse_data(convert_python_to_r_data(value, file_type="rds"), file_type="rds")
        packed = (len(raw) + length_error).to_bytes(4, "big") + zlib.compress(raw)
        places[name] = np.array([len(content), len(packed)], np.int32)
        content += packed
    (folder / "Rdata.rdb").write_bytes(content)
    rdata.write_rds(folder / "Rdata.rdx", {"variables": places, "references": {}, "compressed": np.array([True])})


@pytest.fixture
def small_movielens(monkeypatch, tmp_path):
    columns = {name: np.array(values, float if name == "rating" else np.int32) for name, values in RATED.items()}
    write_r_package(tmp_path, {"other": np.array([1.0]), "movielens": columns})
    monkeypatch.setattr(ratings, "FOLDERS", (tmp_path / "none", tmp_path))


def test_users_and_movies_are_numbered_from_0(small_movielens):
    assert ratings.find() == "movielens"
    found = ratings.load()
    assert list(found.users) == [1, 1, 0] and list(found.movies) == [1, 0, 1]
    assert list(found.stars) == RATED["rating"] and found.stars.dtype == np.float32
    assert (found.user_count, found.movie_count) == (2, 2)


def test_a_spoilt_package_is_refused(tmp_path):
    write_r_package(tmp_path, {"movielens": np.array([1.0])}, length_error=1)
    with pytest.raises(ValueError, match="movielens"):
        ratings.r_object(tmp_path, "movielens")


def test_without_movielens_ratings_are_made_up_and_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(ratings, "FOLDERS", (tmp_path,))
    assert ratings.find() == "made-up" and "r-cran-dslabs" in ratings.describe("made-up")
    with pytest.raises(ValueError, match="r-cran-dslabs"):
        ratings.find("movielens")
    with pytest.raises(ValueError, match="made-up"):
        ratings.find("netflix")


def test_made_up_ratings_are_like_real_ones_and_always_the_same():
    found, again = ratings.made_up(), ratings.made_up()
    assert np.array_equal(found.stars, again.stars) and np.array_equal(found.movies, again.movies)
    assert set(np.unique(2 * found.stars)) == set(range(1, 11))
    assert 0 <= found.users.min() and found.users.max() < found.user_count
    often = np.sort(np.bincount(found.movies, minlength=found.movie_count))[::-1]
    assert often[:100].sum() > 5 * 100 * often.mean()  # few movies have many ratings
    assert 0.9 < found.stars.std() < 1.1


@pytest.mark.skipif(ratings.installed() is None, reason="needs r-cran-dslabs")
def test_movielens_is_movielens():
    found = ratings.load("movielens")
    assert len(found.stars) == 100_004 and (found.user_count, found.movie_count) == (671, 9066)
    assert found.stars.mean() == pytest.approx(3.5436, abs=1e-4)
    assert found.stars.min() == 0.5 and found.stars.max() == 5


def test_only_rows_in_the_batch_have_a_gradient():
    torch.manual_seed(0)
    model = Filter(5, 7, 3.5, sparse=False)
    stars = model(torch.tensor([1, 1, 3]), torch.tensor([6, 2, 2]))
    assert stars.shape == (3,) and stars.detach() == pytest.approx(3.5, abs=0.5)
    stars.sum().backward()
    assert model.user_embedding.weight.grad.any(1).nonzero().flatten().tolist() == [1, 3]
    assert model.movie_embedding.weight.grad.any(1).nonzero().flatten().tolist() == [2, 6]


def test_the_table_tells_four_digits_relative_to_plain():
    row = {"task": tasks.RECOMMENDER, "compressor": "s2+none", "accuracy": 0.8844, "accuracy_difference": 0.0,
           "accuracy_interval": None, "wire_bytes_per_step": None, "arithmetic_bytes_per_step": 2e6, "row_bytes_per_step": 1e6,
           "step_seconds": 0.1, "speedup": 1.0, "seconds_to_same_loss": 1.0, "time_to_same_loss_ratio": 1.0}
    assert table.cells([row])[0][1:5] == ["0.8844", "+0.00 %", "2.00", "1.00"]
    assert "RMSE" in table.render([row])


def run(*command):
    done = subprocess.run([preloaded_python(), *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=200,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_trains_with_dense_and_sparse_embeddings(tmp_path, sparse):
    out = run("-m", "bench.training", "--task", "recommender", "--data", "made-up", "--link", "none", "--workers", "2",
              "--train-limit", "8192", "--batch", "128", "--epochs", "1", "--test-limit", "1000", "--evaluations", "1",
              "--compressors", "plain;s2+none;s2:mode=exact/casq:bits=2+casq:bits=2",
              "--out", str(tmp_path), *(["--sparse-embedding"] if sparse else []))
    assert "RMSE" in out and "made up" in out
    results = json.loads((tmp_path / "results.json").read_text())
    plain, lossless, quantized = results["summary"]
    assert plain["accuracy"] < 0.93  # to say the mean each time: 0.98
    assert lossless["accuracy"] == pytest.approx(plain["accuracy"], rel=1e-3)
    assert quantized["accuracy"] == pytest.approx(plain["accuracy"], rel=0.02)
    assert lossless["row_bytes_per_step"] < 0.2 * plain["arithmetic_bytes_per_step"]
    assert quantized["arithmetic_bytes_per_step"] < 0.05 * plain["arithmetic_bytes_per_step"]
    assert "RMSE" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_example_trains():
    for options in ([], ["--sparse", "--compressor", "s2", "--rest", "none"]):
        out = run("-m", "torch.distributed.run", "--nproc-per-node", "2", "examples/train_recommender.py", "--ratings", "made-up",
                  "--steps", "10", *options)
        assert "RMSE" in out and "rows of the embeddings" in out
