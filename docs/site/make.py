"""Makes the site of README.md, docs/, the registry and the docstrings. Its pages load nothing from the network."""

import argparse
import sys
import tempfile
from pathlib import Path

SITE = Path(__file__).resolve().parent
ROOT = SITE.parents[1]


def main():
    parser = argparse.ArgumentParser(prog="./docs/build", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/site", help="the folder to make (default: build/site)")
    options = parser.parse_args()
    from sphinx.cmd.build import build_main  # not needed for --help

    with tempfile.TemporaryDirectory() as cache:
        status = build_main(["--fail-on-warning", "--keep-going", "--quiet", "--write-all", "-b", "html", "-c", str(SITE), "-d", cache,
                             str(ROOT), str(options.out)])
    if status == 0:
        print(options.out / "index.html")
    return status


if __name__ == "__main__":
    sys.exit(main())
