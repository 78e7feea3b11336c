"""bench/auto: its verdicts and its table, and one cell of it, small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from preloaded_python import preloaded_python

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.auto import __main__ as job  # noqa: E402
from bench.auto import changing  # noqa: E402
from test_training_job import needs_data, needs_namespaces  # noqa: E402


LOSSY = [{"spec": "casq:bits=2,reduce=gather", "is_allowed": False}, {"spec": "casq:rate=0.5,reduce=scatter", "seconds": 0.4, "is_allowed": True}]


def cell(auto, took, **seconds):
    seconds = {"plain": 1.0, "plain again": 1.02, "casq:rate=0.5,reduce=scatter": 0.5} | seconds
    decided = {"auto": {"spec": took, "prospects": LOSSY}}
    return {"link": "100mbit", "size": "25M", "parameters": 25, "steps": 40, "seconds": {"auto": auto} | seconds, "auto": decided}


def test_verdicts():
    verdict = job.judged(cell(0.55, "casq:rate=0.5,reduce=auto"))
    assert verdict["best"] == "casq:rate=0.5,reduce=scatter" and verdict["to_best"] == pytest.approx(1.1)
    assert verdict["to_plain"] == pytest.approx(0.55 / 1.02) and verdict["noise"] == pytest.approx(1.02)


def test_what_is_too_lossy_is_no_best():
    assert job.judged(cell(0.55, "plain", **{"casq:bits=2,reduce=gather": 0.1}))["best"] == "casq:rate=0.5,reduce=scatter"


def test_what_goes_by_rows_is_said_and_is_no_prediction_of_a_fixed_spec():
    by_rows = cell(0.55, "casq:rate=0.5,reduce=scatter")
    auto = by_rows["auto"]["auto"] | {"rules": {"embedding.weight": "s2:mode=exact/casq:rate=0.5,reduce=scatter"}}
    by_rows["auto"]["auto"] = auto | {"prospects": [prospect | {"by_rows": True} for prospect in LOSSY]}
    assert "casq:rate=0.5,scatter,rows casq:rate=0.5,scatter" in job.table([by_rows, cell(0.55, "plain")]).splitlines()[1]
    assert len(job.model_errors([by_rows])) == 0 and len(job.model_errors([cell(0.55, "plain")])) == 1
    assert max(map(len, job.table([by_rows, cell(0.55, "plain")]).splitlines())) <= 100


def test_on_two_levels_specs_are_the_same():
    plain = cell(0.55, "none")
    decided = {"spec": "none", "prospects": [LOSSY[0] | {"seconds": 0.1}, {"spec": "bf16", "seconds": 0.9, "is_allowed": True}]}
    seconds = {"plain": 1.0, "plain again": 1.02, "hosts:none": 0.5, "hosts:thinwire:bf16": 0.6, "hosts:casq:bits=2,reduce=gather": 0.1}
    on_two = plain | {"auto": {"hosts:auto": decided}, "seconds": {"hosts:auto": 0.55} | seconds}
    verdict = job.judged(on_two)
    assert (verdict["best"], verdict["took"], verdict["to_best"]) == ("hosts:none", "none", pytest.approx(1.1))
    assert job.model_errors([on_two]) == pytest.approx([0, 0.5])
    assert job.table([on_two]).splitlines()[1].endswith("none                       none")
    assert [spec for spec in job._specs(2) if not spec.startswith("hosts:")] == ["plain", "plain again"]


def test_table_fits_and_counts():
    cells = [cell(0.52, "casq:rate=0.5,reduce=auto"), cell(1.1, "plain"), cell(1.01, "plain", **{"casq:rate=0.5,reduce=scatter": 2.0})]
    lines = job.table(cells).splitlines()
    assert max(map(len, lines)) <= 100
    assert "in 2 of 3 cells" in lines[-2] and lines[-2].endswith("slower than the slower plain in 1")
    assert lines[-1] == "the model: off by 20 % in the median of 3 predictions, at worst by 80 %"


def test_a_phase_is_decided_where_its_last_decision_begins():
    steps = [{"spec": spec, "phase": phase, "seconds": 1.0} for spec, phase in
             [("casq", "decided"), ("plain", "watching"), ("casq", "trying"), ("plain", "decided"), ("plain", "decided")]]
    assert changing._phase("none", steps)["decided_after"] == 3
    assert changing._phase("none", steps[-1:])["decided_after"] == 0


@needs_namespaces
@needs_data
@pytest.mark.slow
def test_a_link_that_changes(tmp_path):
    out = tmp_path / "changing.json"
    command = [preloaded_python(), "-m", "bench.auto.changing", "--steps", "50", "--links", "1gbit,none", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    phases = json.loads(out.read_text())["phases"]
    assert [phase["link"] for phase in phases] == ["1gbit", "none"] and phases[0]["phase"] == "decided"
    assert phases[0]["specs"][:8] == ["plain"] * 8
