"""A short form of torch_ddp_tests.py: some of PyTorch's own DDP tests, with thinwire attached."""

import pytest
import torch_ddp_tests

SOME = [
    "test_ddp_control_flow_same_across_ranks", "test_ddp_create_graph", "test_ddp_ignore_params_arg",
    "test_ddp_namedtuple", "test_ddp_new_tensor_in_fwd", "test_ddp_static_graph_nested_types", "test_ddp_unused_params_rebuild_buckets_exception",
    "test_ddp_join_model_equivalence",
]  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """PyTorch's tests read it when they are imported."""
    for name in ("BACKEND", "WORLD_SIZE", "TEMP_DIR", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")


def test_pytorchs_own_tests_pass_with_thinwire_attached():
    torch_ddp_tests._prepare(2)
    said = []
    assert torch_ddp_tests.run(SOME, ["none", "casq:bits=8"], 2, said.append) == []
    assert "0 are run" not in said[0]


def test_a_failure_that_nobody_expects_is_told(monkeypatch):
    torch_ddp_tests._prepare(2)
    monkeypatch.setattr(torch_ddp_tests, "EXPECTED", [("test_ddp_namedtuple", "*", "made up")])
    wrong = torch_ddp_tests.run(["test_ddp_join_model_equivalence", "test_ddp_namedtuple"], ["none"], 2, lambda _: None)
    assert len(wrong) == 2 and "join() cannot work" in wrong[0] and "namedtuple passed: made up" in wrong[1]
