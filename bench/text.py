"""Real text that Debian packages hold, as numbers of words in the order of their frequency."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PYTHON_DOC = Path("/usr/share/doc/python3.11/html/_sources")  # Debian's python3.11-doc
KING_JAMES = Path("/usr/bin/bible")  # Debian's bible-kjv
CORPORA = ("python-doc", "king-james")
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Corpus:
    """`words`: int64, one number a token; number 0 is the most frequent word."""

    name: str
    words: np.ndarray
    vocabulary: int


def installed() -> list[str]:
    """The corpora that are there."""
    return [name for name, path in (("python-doc", PYTHON_DOC), ("king-james", KING_JAMES)) if path.exists()]


def find(name: str | None = None) -> str:
    """The corpus of this name; for None the first that is installed. ValueError where it is not there."""
    if name is not None and name not in CORPORA:
        raise ValueError(f"corpus {name!r}: expected one of {', '.join(CORPORA)}")
    found = [each for each in installed() if name in (None, each)]
    if not found:
        raise ValueError("no text: install Debian's python3.11-doc, or bible-kjv with bible-kjv-text")
    return found[0]


def load(name: str | None = None) -> Corpus:
    """As `find()` finds it."""
    name = find(name)
    tokens = _TOKEN.findall(_python_doc() if name == "python-doc" else _king_james())
    ranks = {word: rank for rank, (word, _) in enumerate(Counter(tokens).most_common())}
    return Corpus(name, np.fromiter((ranks[token] for token in tokens), np.int64, len(tokens)), len(ranks))


def _python_doc() -> str:
    files = sorted(PYTHON_DOC.rglob("*.txt"))
    if not files:
        raise ValueError(f"no text in {PYTHON_DOC}: install Debian's python3.11-doc")
    return "\n".join(file.read_text(errors="replace") for file in files)


def _king_james() -> str:
    out = subprocess.run([KING_JAMES, "-f", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         check=True).stdout
    return "\n".join(line.partition(" ")[2] for line in out.splitlines())
