"""The site is made without a warning, its links lead somewhere, its pages load nothing from elsewhere, and its references are whole."""

import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from preloaded_python import preloaded_python

import thinwire
import thinwire.torch

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """What a page refers to, as pairs of tag and address, and the names of its places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[tuple[str, str]] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.references += [(tag, given[name]) for name in ("href", "src", "srcset", "poster", "data", "action") if name in given]
        self.places |= {given[name] for name in ("id", "name") if name in given}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run([preloaded_python(), ROOT / "docs/site/make.py", "--out", folder], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout + done.stderr) == (0, f"{folder}/index.html\n")  # no warnings
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def references(pages: dict[Path, Page]) -> Iterator[tuple[Path, str, str]]:
    for path, page in pages.items():
        for tag, address in page.references:
            yield path, tag, address


def test_links_lead_somewhere(pages: dict[Path, Page]) -> None:
    checked = 0
    for path, _, address in references(pages):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        assert target.is_file(), f"{path.name}: {address}"
        assert not parts.fragment or target.suffix != ".html" or unquote(parts.fragment) in pages[target].places, f"{path.name}: {address}"
        checked += 1
    assert checked > 1000


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, tag, address in references(pages):
        assert tag == "a" or not urlsplit(address).netloc, f"{path.name}: <{tag}> of {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", style.read_text()), style.name


def test_every_page_is_there(site: Path) -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        assert (site / page.relative_to(ROOT).with_suffix(".html")).is_file()


def test_every_compressor_has_its_section(site: Path) -> None:
    text = (site / "docs/compressors.html").read_text()
    for row in thinwire.compressors():
        section = re.search(rf'<section id="{row["name"]}">.*?</section>', text, re.S)
        for parameter in row["parameters"]:
            assert f'<span class="pre">{parameter["name"]}</span>' in section[0], f"{row['name']}:{parameter['name']}"


@pytest.mark.parametrize("module", [thinwire, thinwire.torch])
def test_every_public_name_is_described(module, site: Path, pages: dict[Path, Page]) -> None:
    places = pages[site / "docs/api.html"].places
    for name in module.__all__:
        assert f"{module.__name__}.{name}" in places
        thing = getattr(module, name)
        if isinstance(thing, type) and not issubclass(thing, Exception):
            members = {member for member in dir(thing) if not member.startswith("_")}
            assert members and {f"{module.__name__}.{name}.{member}" for member in members} <= places
