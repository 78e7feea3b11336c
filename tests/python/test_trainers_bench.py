"""bench.trainers: its table."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.trainers import __main__ as job  # noqa: E402


def row(further):
    plain = {"curve": [2.0, 1.0], "bytes_a_step": 100.0, "resumed_same_bits": True}
    return {"trainer": "transformers", "model": "gpt2", "compressor": "casq:rate=1,weight=1", "plain": plain,
            "compressed": {"curve": [2.0, 1.1], "bytes_a_step": 7.0, "resumed_same_bits": False}, "further": further}


@pytest.mark.parametrize("further, cells", [([], ["1.0000", "1.1000", "+10.00"]), ([{"plain": 3.0, "compressed": 3.1}], ["2.0000", "2.1000", "+5.00", "±0.0"])])
def test_table(further, cells):
    lines = job.table([row(further)]).splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[1].split() == ["transformers", "gpt2", "casq:rate=1,weight=1", *cells, "0.070", "plain"]
