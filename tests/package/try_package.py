"""Packs the project as its users get it, and tries that: source distribution, wheel, installation.

Usage: try_package.py FOLDER (empty; everything is made there). The build's tools are those of the Python that runs this:
pip's own isolation would download them again.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
folder = Path(sys.argv[1]).resolve()


def run(*command, directory=ROOT):
    print("$", *command, flush=True)
    subprocess.run([str(word) for word in command], cwd=directory, check=True)


def only(pattern):
    """The one path in the folder that matches."""
    (path,) = folder.glob(pattern)
    return path


def call_backend(hook, directory):
    # A build folder beside the sources, as in the checkout: relative paths are the same, so ccache has the objects.
    code = f"from scikit_build_core.build import {hook}; {hook}({str(folder)!r}, {{'build-dir': 'build'}})"
    run(sys.executable, "-c", code, directory=directory)


call_backend("build_sdist", ROOT)
run("tar", "-xzf", only("thinwire-*.tar.gz"), directory=folder)
call_backend("build_wheel", next(path for path in folder.glob("thinwire-*") if path.is_dir()))

# An environment that sees the dependencies of the project's own, but not its installation of thinwire.
python = folder / "venv/bin/python"
run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
only("venv/lib/python3*/site-packages").joinpath("dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", only("*.whl"))
run(python, ROOT / "tests/package/check_wheel.py", only("*.whl"), ROOT, directory="/")
