"""Run by the Python of a fresh environment that the wheel was installed into: is the package whole, and nothing more?

Usage: check_wheel.py WHEEL SOURCE_DIRECTORY
"""

import sys
import zipfile
from pathlib import Path

wheel, source = sys.argv[1], Path(sys.argv[2])
names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
modules = {name for name in names if name.startswith("thinwire/_native.") and name.endswith(".so")}
python = {path.relative_to(source / "python").as_posix() for path in (source / "python/thinwire").rglob("*.py")}
if len(modules) != 1:
    sys.exit(f"want one compiled module in the wheel, got {sorted(modules)}")
if missing := python - names:
    sys.exit(f"missing in the wheel: {sorted(missing)}")
strange = {name for name in names - modules - python if not name.endswith((".pyi", "py.typed"))}
if strange:
    sys.exit(f"files in the wheel that nobody needs: {sorted(strange)}")

import thinwire  # noqa: E402  (only now, so that the messages above come first)

if not Path(thinwire.__file__).is_relative_to(sys.prefix):
    sys.exit(f"imported {thinwire.__file__}, not the installed wheel in {sys.prefix}")
print(f"thinwire {thinwire.__version__} imported from {Path(thinwire.__file__).parent}")
