"""bench.torch_operations: what it measures beside thinwire's codecs is the same compressors; its table."""

import sys
from pathlib import Path

import pytest
import thinwire
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import torch_operations as job  # noqa: E402


def lost(gradient, decoded):
    return ((gradient - decoded).square().sum() / gradient.square().sum()).item()


@pytest.mark.parametrize("operations", job.ALL, ids=lambda operations: operations.spec)
def test_both_lose_the_same_share(operations):
    """Of their energy; what is drawn at random is drawn otherwise."""
    random = torch.Generator().manual_seed(2)
    gradient = 0.003 * torch.randn(8 * 32768, generator=random) * torch.empty(8 * 32768).exponential_(generator=random)
    torch.manual_seed(3)
    theirs = lost(gradient, operations.decode(operations.encode(gradient), gradient))
    decoded, _ = thinwire.exchange([gradient.numpy()], operations.spec, seed=4)
    assert theirs == pytest.approx(lost(gradient, torch.from_numpy(decoded)), rel=0.05)


def test_table():
    row = {"spec": "qsgd:bits=4,reduce=gather", "encode_gbs": 2.0, "torch_encode_gbs": 0.1, "decode_gbs": 10.0, "torch_decode_gbs": 1.0}
    lines = job.table([row]).splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[1].split() == ["qsgd:bits=4,reduce=gather", "2.00", "0.10", "20.0x", "10.00", "1.00", "10.0x", "18.3x"]
