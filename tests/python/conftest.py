"""What every Python test shares. Time limits are in pyproject.toml."""

import os

# Several workers share few cores, and torch's own threads would fight over them. It counts only before torch is
# imported, and for the processes that tests start.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
