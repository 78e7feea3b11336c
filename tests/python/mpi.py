"""What tests need to run mpirun: as root too, with more workers than cores, and without ssh."""

import shutil
import subprocess

ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_plm": "isolated",
}


def is_built_into(tool: str) -> bool:
    """Whether mpirun is here, and was when ``tool`` was built."""
    if shutil.which("mpirun") is None:
        return False
    alone = [tool, "allreduce", "--compressor", "none", "--elements", "1", "--repetitions", "1"]
    return "no MPI" not in subprocess.run(alone, capture_output=True, text=True, timeout=60).stderr
