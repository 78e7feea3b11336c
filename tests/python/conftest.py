"""What every Python test shares. Time limits are in pyproject.toml."""

import os

import pytest

# What makes networks, or starts torchrun on its usual port, goes one after the other; else every file may run beside others.
ALONE = {"test_language_job", "test_network_bench", "test_readme", "test_recommender_job", "test_training_job"}

# Several workers share few cores, and torch's own threads would fight over them. It counts only before torch is
# imported, and for the processes that tests start.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items):
    for item in items:
        module = item.module.__name__.rpartition(".")[2]
        item.add_marker(pytest.mark.xdist_group("alone" if module in ALONE else module))
