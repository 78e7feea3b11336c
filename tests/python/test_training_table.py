"""bench.training_table: what it trains, its table, a small run of it; and pages of as many runs as it makes."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import thinwire
from preloaded_python import preloaded_python

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import training_table as job  # noqa: E402
from bench.training import plots, report, results, specs  # noqa: E402
from test_training_job import needs_data  # noqa: E402


def test_every_row_is_trained():
    chosen = job.specs([])
    assert chosen[0] == "plain" and len(chosen) == len(set(chosen))
    assert {row["name"] for row in thinwire.compressors()} - {"none"} <= {job._row_of(spec) for spec in chosen}
    specs.check(chosen)
    specs.check([job.in_language_model(spec) for spec in chosen])
    assert job.specs(["casq"]) == ["plain", "casq", "casq:rate=1", "casq:rate=0.5"]


def test_what_has_the_momentum():
    assert [spec for spec in job.specs([]) if specs.has_momentum(spec)] == ["dgc", "signum:scale=0.01"]
    assert specs.has_momentum("s2+dgc") and not specs.has_momentum("plain")


def run_of(spec, seed):
    return {
        "seed": seed, "compressor": spec, "task": "images", "steps": 40, "warm_up_steps": 3, "losses": [1.0] * 40, "step_seconds": [0.1] * 40,
        "step_bytes": None, "accuracies": [[20, 0.5], [40, 0.6 + 0.01 * seed]], "arithmetic_bytes": 1e9, "arithmetic_bytes_per_step": 1e6,
        "row_bytes_per_step": None, "compute_seconds": 0.05, "hook_seconds": None, "compress_seconds": 0.01, "compression_error": 0.1,
        "compressor_stats": {},
    }  # fmt: skip


def many_runs():
    names = ["plain", "powersgd", *(f"casq:bits={i % 8 + 1},retrain={i},scope=block,feedback=off,reduce=scatter" for i in range(42))]
    return [run_of(name, seed) for name in names for seed in (0, 1)]


def test_a_page_of_forty_long_specs_has_room_for_all():
    runs = many_runs()
    rows = results.summarise(runs)
    colour = plots.colours([row["compressor"] for row in rows])
    assert sum(shade == plots.REST for shade in colour.values()) == 36 and len(set(colour.values())) == 9
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the plotting library's, where nothing fits
        drawings = [plots.step_split(rows), plots.score_differences(rows, colour)]
        drawings += [plots.score_over_time(runs, colour), plots.loss_over_bytes(runs, colour)]
    assert all("<svg" in drawing for drawing in drawings)
    assert max(len(line) for label in (plots._short(row["compressor"], 2) for row in rows) for line in label.split("\n")) <= 19


def test_a_page_speaks_of_one_that_learned():
    runs = [run_of("plain", 0), run_of("topk", 0) | {"step_seconds": [0.01] * 40, "losses": [3.0] * 40}, run_of("casq:bits=3", 0)]
    assert report.best(results.summarise(runs))["compressor"] == "casq:bits=3"


def test_the_table_fits(tmp_path):
    chosen = job.specs([])
    (tmp_path / "images").mkdir()
    rows = results.summarise([run_of(spec, seed) for spec in chosen for seed in (0, 1)])
    (tmp_path / "images/results.json").write_text(json.dumps({"summary": rows}))
    found = job.table(tmp_path, chosen)
    assert [row["spec"] for row in found] == chosen and found[1]["seeds"] == 2 and found[1]["perplexity"] is None
    lines = job.text(found).splitlines()
    assert len(lines) == 3 + len(chosen) and max(map(len, lines)) <= 100
    assert len(job.markdown(found).splitlines()) == 2 + len(chosen)


@needs_data
@pytest.mark.slow
def test_a_small_table(tmp_path):
    command = [preloaded_python(), "-m", "bench.training_table", "--only", "s2", "--parts", "images", "--seeds", "1", "--epochs", "0.002", "--out", str(tmp_path)]
    for _ in range(2):  # the second time nothing is left to train
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["spec"] for row in rows] == ["plain", "s2"] and all(0 < row["accuracy"] < 1 for row in rows)
    assert "test accuracy" not in done.stdout and "| `s2` |" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize("wrong", [["--parts", "imagse"], ["--only", "qsdg"]])
def test_wrong_words_are_refused(wrong):
    done = subprocess.run([preloaded_python(), "-m", "bench.training_table", *wrong], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and wrong[1] in done.stderr
