"""The job itself: network, workers, results."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from bench.training import network, report, table
from bench.training.launcher import Workers
from bench.training.progress import Progress
from bench.training.results import Results, summarise
from bench.training.settings import Settings
from bench.training.tasks import TASKS, task_of


def run(settings: Settings, out: Path, command: list[str], earlier: list[dict]) -> Results:
    """Trains everything that `earlier` does not hold already; writes results and report."""
    begin = time.monotonic()
    results = Results(settings, command, {"link": settings.link}, runs=list(earlier))
    progress = Progress(len(settings.seeds) * len(settings.compressors) - len(earlier))
    progress.say(f"Data: {TASKS[settings.task].describe_data(settings.data)}")
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        place = _open_network(settings, stack, progress, results)
        workers = stack.enter_context(
            Workers(settings, place, out / "logs", results.finished()))
        progress.waiting("starting the workers ...")
        for event in workers.events():
            kind = event.pop("event")
            _take(kind, event, results, progress)
            results.seconds = time.monotonic() - begin
            if kind == "trained":
                results.save(out / "results.json")
    results.complete = True
    results.save(out / "results.json")
    (out / "report.html").write_text(report.page(results.as_dict()))
    print("\n" + _closing(results, out))
    return results


def _open_network(settings: Settings, stack: ExitStack, progress: Progress,
                  results: Results) -> network.Loopback | network.Namespaces:
    """The network that was asked for where it can be had, and loopback, saying so, where not."""
    for name in network.remove_abandoned():
        progress.say(f"Deleted {name}, left behind by a job that was killed.")
    link = network.parse_link(settings.link)
    opened: network.Loopback | network.Namespaces = network.Loopback()
    note = None
    if link.shaped:
        try:
            opened = stack.enter_context(network.Namespaces(settings.workers, link, settings.per_host))
        except network.NetworkError as error:
            note = (f"NOT the {link.name} that was asked for, but loopback, unshaped: {error}. "
                    "Times and speed-ups say nothing about a slow network.")
            progress.say(note)
    results.link |= {"shaped": opened.own_counters, "description": opened.description,
                     "note": note}
    progress.say(f"Network: {opened.description}")
    return opened


def _take(kind: str, event: dict, results: Results, progress: Progress) -> None:
    """Acts on one report of rank 0."""
    if kind == "network":
        results.link |= event
        progress.say(describe_network(results.link))
    elif kind == "begin":
        progress.begin()
    elif kind == "progress":
        progress.step(event["compressor"], event["seed"], event["step"], event["steps"],
                      event["loss"])
    elif kind == "trained":
        results.runs.append(event)
        row = summarise([event])[0]
        task = task_of(row)
        progress.end(f"{event['compressor']}, seed {event['seed']}: test {task.score} "
                     f"{task.text(row['accuracy'])}, {1e3 * row['step_seconds']:.0f} ms a step")


def describe_network(link: dict) -> str:
    """What was measured before training, in two lines."""
    megabytes = 4e-6 * link["elements"]
    return (f"Measured: {link['payload_bits_per_second'] / 1e6:.0f} Mb/s of payload per worker. "
            f"Plain all-reduce of {megabytes:.1f} MB: {1e3 * link['all_reduce_seconds']:.0f} ms, "
            f"{link['all_reduce_over_limit']:.2f}x its limit.\n"
            f"Model: {link['elements'] / 1e6:.1f} M parameters; {link['steps']} steps a training.")


def _closing(results: Results, out: Path) -> str:
    several = len(results.settings.seeds) > 1
    notes = ["MB sent: " + ("the interface's own counter, headers included"
                            if results.link["shaped"] else "by arithmetic")
             + "; a megabyte is 1e6."]
    if several:
        notes.append("Against plain: mean difference over seeds, 95 % paired interval.")
    if results.link.get("note"):
        notes.append(results.link["note"])
    minutes, seconds = divmod(round(results.seconds), 60)
    return "\n".join([table.render(summarise(results.runs)), "", *notes,
                      f"Took {minutes} min {seconds} s. Results: {out / 'results.json'}; "
                      f"report: {out / 'report.html'}"])
