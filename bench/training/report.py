"""out/report.html: one page, complete in itself, that shows what a job found."""

from __future__ import annotations

import re
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template

from bench.training import plots, table, tasks
from bench.training.specs import needs_thinwire
from bench.training.tasks import Task, task_of

_TEMPLATE = Path(__file__).with_name("report_template.html")


def page(results: dict) -> str:
    """The page for the contents of results.json."""
    rows, runs, network = results["summary"], results["runs"], results["network"]
    colour = plots.colours([row["compressor"] for row in rows])
    note, seeds = network.get("note"), results["settings"]["seeds"]
    return Template(_TEMPLATE.read_text()).substitute(
        title=escape(_title(results)), subtitle=escape(_subtitle(results)),
        warning=f'<p class="warning">{escape(note)}</p>' if note else "",
        lead=escape(_lead(results)), tiles=_tiles(rows), table=_table(rows, colour),
        table_note=escape(_table_note(results)), plots=_plots(rows, runs, colour),
        details=_details(results), details_class="card wide" if len(seeds) > 1 else "card")


def best(rows: list[dict]) -> dict | None:
    """The row to speak of: thinwire's casq:bits=2 if there, else its fastest, else the fastest; of those that learned as much as plain, if any did."""
    rows = [row for row in rows if row["speedup"] is not None and row["compressor"] != "plain"]
    rows = [row for row in rows if row["seconds_to_same_loss"] is not None] or rows
    ours = [row for row in rows if needs_thinwire(row["compressor"])] or rows
    named = [row for row in ours if row["compressor"] == "casq:bits=2"]
    return named[0] if named else max(ours, key=lambda row: row["speedup"], default=None)


def _bytes_a_step(row: dict) -> float:
    measured = row["wire_bytes_per_step"]
    return row["arithmetic_bytes_per_step"] if measured is None else measured


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _task_of_rows(rows: list[dict]) -> Task:
    return task_of(rows[0] if rows else {})


def _task(results: dict) -> Task:
    return _task_of_rows(results["summary"])


def _plain(rows: list[dict]) -> dict | None:
    return next((row for row in rows if row["compressor"] == "plain"), None)


def _title(results: dict) -> str:
    network = results["network"]
    link = f"a {_link(network['link'])} network" if network["shaped"] else "loopback"
    return f"Training over {link}, compressor against compressor"


def _link(name: str) -> str:
    for unit, words in (("gbit", "Gb/s"), ("mbit", "Mb/s"), ("kbit", "kb/s")):
        if name.endswith(unit):
            return f"{name.removesuffix(unit)} {words}"
    return name


def _subtitle(results: dict) -> str:
    machine, started = results["machine"], datetime.fromisoformat(results["started"])
    return (f"thinwire, {started:%d %B %Y}, on {machine['cores']} cores of {machine['cpu']}. "
            f"It took {_duration(results['seconds'])}.")


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} seconds" if minutes < 2 else f"{minutes:.0f} minutes"


_MODEL_NAMES = {"vgg": "VGG", "resnet": "ResNet"}


def _model(settings: dict, task: tasks.Task) -> str:
    return f"{_MODEL_NAMES[settings.get('model', 'vgg')]}-like network" if task.name == tasks.IMAGES else task.model


def _lead(results: dict) -> str:
    settings, network, task = results["settings"], results["network"], _task(results)
    steps = results["runs"][0]["steps"] if results["runs"] else network.get("steps", 0)
    text = (f"{settings['workers']} workers trained a {_model(settings, task)} of "
            f"{network['elements'] / 1e6:.1f} M parameters on {task.describe_data(settings['data'])} with PyTorch DDP, "
            f"{steps} steps of {settings['workers']} × {settings['batch']} examples, once for each "
            "way of summing their gradients. Initial weights and batches were the same for all. ")
    row, plain = best(results["summary"]), _plain(results["summary"])
    if row and plain:
        text += (f"{row['compressor']} took {1e3 * row['step_seconds']:.0f} ms a step where plain "
                 f"all-reduce took {1e3 * plain['step_seconds']:.0f} ms, and reached a test "
                 f"{task.score} of {task.text(row['accuracy'])} where plain reached "
                 f"{task.text(plain['accuracy'])}.")
    return text


def _tiles(rows: list[dict]) -> str:
    row, plain = best(rows), _plain(rows)
    if not row or not plain:
        return ""
    name = row["compressor"]
    tiles = [(_times(row["speedup"]), f"as many steps a second, {name} against plain"),
             *([(_times(_bytes_a_step(plain) / _bytes_a_step(row)), "fewer bytes on the wire")] if _bytes_a_step(row) else []),
             (f"{task_of(row).difference(row):+.1f}".replace("-", "−"),
              f"{'%' if task_of(row).relative else 'points'} of test {task_of(row).score} against plain")]
    if row["time_to_same_loss_ratio"] is not None:
        tiles.append((f"{100 * row['time_to_same_loss_ratio']:.0f} %",
                      "of plain's time to the same loss"))
    return "".join(f'<div class="card tile"><b>{escape(number)}</b><span>{escape(text)}</span>'
                   "</div>" for number, text in tiles)


def _times(factor: float) -> str:
    return f"{factor:.0f}×" if factor >= 20 else f"{factor:.1f}×"


def _table(rows: list[dict], colour: dict[str, str]) -> str:
    heads = "".join(f"<th>{escape(above)}<br>{escape(below)}</th>" if above else
                    f"<th>{escape(below)}</th>"
                    for above, below in (column.heading for column in table.columns(rows)))
    lines = []
    for row, cells in zip(rows, table.cells(rows)):
        name = f"<td>{_key(colour[row['compressor']])}{_breakable(cells[0])}</td>"
        lines.append("<tr>" + name + "".join(
            f"<td>{escape(each.replace('-', '−'))}</td>" for each in cells[1:]) + "</tr>")
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _breakable(spec: str) -> str:
    return re.sub("([,/])", r"\1<wbr>", escape(spec))


def _key(colour: str) -> str:
    return f'<i style="background:{colour}"></i>'


def _table_note(results: dict) -> str:
    counted = ("is what each worker's network interface counted, headers and acknowledgements "
               "included" if results["network"]["shaped"] else "is arithmetic: loopback's counters "
               "are shared")
    text = (f"MB sent (1 MB = 1,000,000 bytes) {counted}; it and the time are medians of the steps "
            "after the compressor's warm-up; rows: what compressors of sparse rows sent, by arithmetic. The same loss is the one that every method reached "
            "(those that ended within a quarter of plain's), on a mean over 25 steps.")
    if len(results["settings"]["seeds"]) > 1:
        text += (" Against plain: the mean difference over seeds, with its 95 % "
                 "interval (paired, Student's t).")
    return text


def _plots(rows: list[dict], runs: list[dict], colour: dict[str, str]) -> str:
    names = [(colour[row["compressor"]], row["compressor"]) for row in rows if colour[row["compressor"]] != plots.REST]
    others = len(rows) - len(names)
    names += [(plots.REST, f"{others} others, named in the table")] if others else []
    several = any(row["accuracy_interval"] is not None for row in rows)
    cards = [
        (f"{_capital(_task_of_rows(rows).score)} over time", "Further left is sooner. Seconds of training, tests left "
         "out; the curve uses a part of the test data, its last point all of them.", names,
         plots.score_over_time(runs, colour)),
        ("Loss over bytes", "Further left is less traffic for the same loss. Mean of 25 steps; "
         "the axis is logarithmic.", names, plots.loss_over_bytes(runs, colour)),
        ("Where a step's time goes", "Compute: a step without communication. Compress: what the "
         "compressor itself costs. Wire: the rest, a step's wait for the network and for the "
         "slowest worker.",
         [(shade, phase) for phase, shade in plots.PHASES.items()], plots.step_split(rows)),
    ]
    if several:
        cards.append((f"{_capital(_task_of_rows(rows).score)} against plain", "Mean over seeds with its 95 % interval: the "
                      "seeds are paired, with the same weights and batches.", [],
                      plots.score_differences(rows, colour)))
    return "".join(_card(*card) for card in cards)


def _card(title: str, text: str, keys: list[tuple[str, str]], svg: str) -> str:
    legend = "".join(f"<span>{_key(shade)}{escape(name)}</span>" for shade, name in keys)
    return (f'<section class="card"><h2>{escape(title)}</h2><p>{escape(text)}</p>'
            f'<div class="keys">{legend}</div>{svg}</section>')


def _details(results: dict) -> str:
    network, settings, machine = results["network"], results["settings"], results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items()
                         if version)
    pairs = [
        ("Command", f"<code>{escape(' '.join(results['command']))}</code>"),
        ("Network", escape(network["description"])),
        ("Measured link", f"{network['payload_bits_per_second'] / 1e6:.0f} Mb/s of payload per "
         "worker, all sending in a ring at once"),
        ("Plain all-reduce", f"{4e-6 * network['elements']:.1f} MB alone on the network: "
         f"{1e3 * network['all_reduce_seconds']:.0f} ms, where arithmetic allows "
         f"{1e3 * network['all_reduce_limit_seconds']:.0f} ms at that rate "
         f"({network['all_reduce_over_limit']:.2f} times)"),
        ("Training", f"{settings['epochs']:g} epochs, {len(settings['seeds'])} seed(s), "
         f"{_task(results).optimizer}, learning rate up to {settings['learning_rate']:g}, one cycle"),
        ("Machine", escape(f"{machine['cores']} cores, {machine['cpu']}, "
                           f"{machine['memory_gib']:.0f} GiB, Linux {machine['kernel']}")),
        ("Versions", escape(versions)),
    ]
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in pairs) + "</dl>"
