"""How Sphinx makes the site (make.py). Its sources are the repository's own pages, so that links are the same here and on GitHub.

docs/README.md is the first page, and its lists of links are the navigation. What is generated, from the registry and from docstrings, is
appended to its page as that is read (generated.py), and is nowhere in the repository.
"""

import sys
from pathlib import Path

import thinwire

sys.path.insert(0, str(Path(__file__).parent))

import generated  # noqa: E402

project = "thinwire"
version = release = thinwire.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/README"
include_patterns = ["*.md", "docs/*.md", "bench/training/README.md"]
# Folders that are not looked into.
exclude_patterns = [".*", "build*", "out*", "dist", "examples", "include", "python", "src", "tests", "scripts", "docs/measurements"]
highlight_language = "text"
myst_heading_anchors = 4

autodoc_typehints = "none"  # signatures stay short, and say the defaults; help() has the types
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"thinwire {release}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_copyright = html_show_sourcelink = html_copy_source = False


def setup(app):
    app.connect("source-read", generated.append)
    app.connect("autodoc-process-docstring", generated.mark_up)
    app.connect("autodoc-process-signature", generated.signature)
    app.connect("build-finished", generated.write_index)
