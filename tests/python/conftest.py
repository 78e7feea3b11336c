"""What every Python test shares. Time limits are in pyproject.toml."""

import gc
import os
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

# Several workers share few cores, and torch's own threads would fight over them. It counts only before torch is
# imported, and for the processes that tests start.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

# Files whose tests make networks, or start torchrun on its usual port: one after the other, and first, as they take longest.
NETWORKS = (
    "test_training_job", "test_language_job", "test_recommender_job", "test_network_bench", "test_auto_bench", "test_fsdp_bench", "test_pages",
)

# Files whose scripts import trainers, which one server imports for all.
TRAINERS = ("test_trainers", "test_examples")

# Of the others those that take longest, so that none is begun last.
LONG = (
    "test_torch_failures", "test_torch_hosts", "test_torch_fsdp", "test_torch_fsdp_steps", "test_torch_fsdp_refusals",
    "test_allreduce", "test_torch_local_steps", "test_torch_local_steps_failures",
)


class FilesSideBySide(LoadFileScheduling):
    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return "networks" if Path(file).stem in NETWORKS else "trainers" if Path(file).stem in TRAINERS else file


def pytest_xdist_make_scheduler(config, log):
    return FilesSideBySide(config, log)


def pytest_collection_finish():
    gc.freeze()  # torch's modules, which every collection would walk


def pytest_collection_modifyitems(items):
    first = [*NETWORKS, *TRAINERS, *LONG]
    items.sort(key=lambda item: first.index(item.path.stem) if item.path.stem in first else len(first))
