"""What the site has beyond the pages as they are written: navigation, the registry, docstrings. conf.py connects it."""

import importlib
import inspect
import re
from itertools import groupby
from pathlib import Path

import thinwire

DOCS = Path(__file__).resolve().parents[1]


def append(app, page, source):
    """Sphinx's event "source-read": `source` holds the text of `page`, in Markdown."""
    if page in GENERATED:
        source[0] += "\n" + GENERATED[page](source[0])


# --- navigation


def navigation(text):
    """A table of contents for each section of `text` that has a list of links."""
    trees = []
    for title, section in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", text, re.M):
        if links := re.findall(r"^- \[(.*?)\]\((.*?)\.md\)", section, re.M):
            entries = "\n".join(f"{name} <{target}>" for name, target in links)
            trees.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```\n")
    return "\n".join(trees)


def write_index(app, failure):
    """What a browser opens in the site's folder leads to the first page."""
    if failure is None:
        first, title = f"{app.config.root_doc}.html", app.config.html_title
        Path(app.outdir, "index.html").write_text(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
            f'<meta http-equiv="refresh" content="0; url={first}"><a href="{first}">{title}</a></html>\n')


# --- the registry

FAMILIES = {
    "floats": "Shorter floats, or none shorter.",
    "levels": "Every entry becomes a level.",
    "signs": "Every entry becomes its sign.",
    "rotations": "Every entry of a rotated chunk becomes a level.",
    "projections": "Several entries become fewer.",
    "sparsifiers": "Some entries travel, the others wait.",
    "rows": "What is zero does not travel.",
}


def compressors(_):
    """A table of all compressors, and a section for each."""
    rows = sorted(thinwire.compressors(), key=lambda row: list(FAMILIES).index(row["family"]))  # and by name, as they come
    overview = [[f"[`{row['name']}`](#{row['name']})", row["family"], row["bits"], row["aggregation"], claims(row),
                 prose(row["description"].split(":")[0])] for row in rows]
    parts = ["## All of them", table(["compressor", "family", "bits of an entry", "combined by", "claims", "what it is"], overview)]
    for family, members in groupby(rows, key=lambda row: row["family"]):
        parts += [f"## {family.capitalize()}", FAMILIES[family], *map(compressor, members)]
    return "\n\n".join(parts) + "\n"


def compressor(row):
    name = row["name"]
    stage = f"may follow, and carries what it sends: `{name}/SPEC`" if row["takes_stage"] else "may not follow"
    facts = [
        ["bits of an entry", row["bits"]],
        ["combined by", row["aggregation"]],
        ["claims", claims(row)],
        ["works on", f"{row['unit']}s"],
        ["a stage", stage],
        ["wire format", f"[id {row['wire_id']}, version {row['wire_version']}](wire_format.md)"],
        ["reference", prose(row["reference"]) or "-"],
        ["with every parameter", f"`{thinwire.canonical_spec(name)}`"],
    ]
    if (DOCS / f"{name}.md").exists():
        facts.append(["how it works", f"[{name}]({name}.md)"])
    parameters = [[f"`{p['name']}`", f"`{p['default']}`", prose(p["allowed"]), prose(p["help"])] for p in row["parameters"]]
    description = prose(row["description"])
    return "\n\n".join([
        f"### {name}", f"{description[0].upper()}{description[1:]}.", table(["", ""], facts),
        table(["parameter", "default", "allowed", "meaning"], parameters) if parameters else "It takes no parameters."])


def claims(row):
    """As the tool lists them: what is lossless is all of it."""
    return "lossless" if row["lossless"] else ", ".join(claim for claim in ("unbiased", "contractive") if row[claim]) or "-"


def prose(text):
    """`text` in Markdown, where it means itself but for its backticks."""
    parts = text.split("`")
    return "`".join(re.sub(r"([\\*_<\[\]$])", r"\\\1", part) if number % 2 == 0 else part for number, part in enumerate(parts))


def table(heading, rows):
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


# --- docstrings


def api(_):
    """Every public name of the modules, by their `__all__`: functions, classes, errors, and the version."""
    parts = []
    for module in map(importlib.import_module, ("thinwire", "thinwire.torch")):
        names = sorted(module.__all__, key=lambda name: [*DIRECTIVES].index(kind(getattr(module, name))))
        directives = "\n".join(DIRECTIVES[kind(getattr(module, name))].format(f"{module.__name__}.{name}") for name in names)
        parts.append(f"## {module.__name__}\n\n```{{eval-rst}}\n{directives}```\n")
    return "\n".join(parts)


DIRECTIVES = {
    "function": ".. autofunction:: {}\n",
    "class": ".. autoclass:: {}\n   :members:\n   :inherited-members:\n",
    "error": ".. autoexception:: {}\n   :show-inheritance:\n",
    "value": ".. autodata:: {}\n   :no-value:\n",
}


def kind(thing):
    if inspect.isclass(thing):
        return "error" if issubclass(thing, Exception) else "class"
    return "function" if callable(thing) else "value"


def signature(app, what, name, thing, options, arguments, returns):
    """Sphinx's event "autodoc-process-signature": what attach() makes is not made by its constructor."""
    return ("", None) if what == "class" and "Made by attach()" in thing.__doc__ else None


def mark_up(app, what, name, thing, options, lines):
    """Sphinx's event "autodoc-process-docstring": a paragraph "parameter: what it is" becomes a list's entry, and docs/page.md a link."""
    try:
        parameters = set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):  # it has none
        parameters = set()
    marked = []
    for line in ["The version, as text."] if what == "data" else lines:
        names, colon, text = line.partition(": ")
        if colon and set(names.split(", ")) <= parameters:
            marked += ["", f"**{names}**", f"    {text}"]
        else:
            marked.append(line)
    lines[:] = [re.sub(r"\bdocs/(\w+)\.md", r":doc:`\1 </docs/\1>`", line) for line in marked]


GENERATED = {"docs/README": navigation, "docs/compressors": compressors, "docs/api": api}
