"""Ratings of movies: MovieLens small, which Debian's r-cran-dslabs holds, or made up after its likeness.

MovieLens: F. M. Harper, J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5:19, 2015. It is read
where it is installed or unpacked (scripts/packages.txt), and no R is needed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SOURCES = ("movielens", "made-up")
_INSIDE = Path("usr/lib/R/site-library/dslabs/data")
_UNPACKED = Path(__file__).resolve().parents[1] / "build/unpacked"
FOLDERS = (Path("/") / _INSIDE, _UNPACKED / _INSIDE)
_MADE_UP_USERS, _MADE_UP_MOVIES, _MADE_UP_RATINGS = 671, 9066, 100_004  # MovieLens small's


@dataclass(frozen=True)
class Ratings:
    """`users`, `movies`: int64, numbered from 0; `stars`: float32, 0.5 to 5. One entry of each a rating."""

    users: np.ndarray
    movies: np.ndarray
    stars: np.ndarray
    user_count: int
    movie_count: int


def installed() -> Path | None:
    """The folder with MovieLens small."""
    return next((folder for folder in FOLDERS if (folder / "Rdata.rdb").exists()), None)


def find(name: str | None = None) -> str:
    """The source of this name; for None MovieLens where it is there. ValueError where it is not."""
    if name is not None and name not in SOURCES:
        raise ValueError(f"ratings {name!r}: expected one of {', '.join(SOURCES)}")
    if name == "movielens" and installed() is None:
        raise ValueError("no MovieLens: install Debian's r-cran-dslabs")
    return name or SOURCES[0 if installed() else 1]


def describe(name: str) -> str:
    return "MovieLens small" if name == "movielens" else \
        "ratings that are made up (MovieLens small is in Debian's r-cran-dslabs)"


def load(name: str | None = None) -> Ratings:
    """As `find()` finds them."""
    return _movielens() if find(name) == "movielens" else made_up()


def _movielens() -> Ratings:
    table = r_object(installed(), "movielens")
    users, movies = (np.unique(np.asarray(table[column], np.int64), return_inverse=True) for column in ("userId", "movieId"))
    return Ratings(users[1], movies[1], np.asarray(table["rating"], np.float32), len(users[0]), len(movies[0]))


def r_object(folder: Path, name: str):
    """An object of an installed R package: Rdata.rdx says at which bytes of Rdata.rdb, which holds objects in zlib's format
    behind their lengths."""
    import rdata  # late: it loads pandas

    index = rdata.read_rds(folder / "Rdata.rdx")
    offset, size = (int(number) for number in index["variables"][name])
    with open(folder / "Rdata.rdb", "rb") as file:
        file.seek(offset)
        length, packed = int.from_bytes(file.read(4), "big"), file.read(size - 4)
    content = zlib.decompress(packed)
    if len(content) != length:
        raise ValueError(f"{folder}: {name} has {len(content)} bytes, its length says {length}")
    return rdata.conversion.convert(rdata.parser.parse_data(content, extension=".rds"))


def made_up() -> Ratings:
    """The same at each call: who rates what by Zipf's law (Mandelbrot's form), how by tastes of eight dimensions, in half stars."""
    random = np.random.default_rng(0)
    users = _zipf(random, _MADE_UP_USERS, shift=0, exponent=0.6)
    movies = _zipf(random, _MADE_UP_MOVIES, shift=80, exponent=1.2)
    of_users, of_movies = (random.normal(size=(count, 8)) for count in (_MADE_UP_USERS, _MADE_UP_MOVIES))
    liking = 3.5 + 0.4 * of_users[users, 0] + 0.4 * of_movies[movies, 0] + \
        0.2 * (of_users[users, 1:] * of_movies[movies, 1:]).sum(1) + 0.7 * random.normal(size=len(users))
    stars = np.clip(np.round(2 * liking) / 2, 0.5, 5).astype(np.float32)
    return Ratings(users, movies, stars, _MADE_UP_USERS, _MADE_UP_MOVIES)


def _zipf(random: np.random.Generator, count: int, shift: float, exponent: float) -> np.ndarray:
    weights = (np.arange(1, count + 1) + shift) ** -exponent
    return np.searchsorted(np.cumsum(weights / weights.sum()), random.random(_MADE_UP_RATINGS)).clip(max=count - 1)
