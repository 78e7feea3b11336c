"""Command line of the main job: `./run`, or `.venv/bin/python -m bench.training`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from bench import ratings, text
from bench.training import interrupts, network, rootless, specs, tasks
from bench.training.settings import FASHION_MNIST, MODELS, Settings

_DESCRIPTION = """\
Trains a convolutional network on Fashion-MNIST, a language model on real text, or a recommender
on ratings of movies, with PyTorch DDP, with one worker process per network namespace and a real,
shaped link to each; once for each way of summing gradients. Prints a table, and writes
OUT/results.json and OUT/report.html, a page with plots.
"""
_EPILOG = """\
compressors:
  plain               DDP's own all-reduce, which the others are compared to
  bf16, fp16          PyTorch's half-precision hooks
  powersgd[:rank=R]   PyTorch's PowerSGD hook (rank 4)
  random:ratio=R      random projections with error feedback, R entries to each coefficient
  casq:bits=2, ...    whatever thinwire serves (`build/thinwire compressors` lists it);
                      thinwire:bf16 is thinwire's, where bf16 is PyTorch's
  momentum:casq:rate=0.1
                      with momentum correction: what is compressed is every worker's own momentum
  warm-up:47/casq:rate=0.1
                      casq:rate=1 in the first 47 steps
  s2+none             s2 for embeddings, none for all else
  local:every=30/casq:bits=2
                      no DDP, but workers that average every 30 steps (docs/local_steps.md)
  Separate them by commas, spaces or semicolons; a comma before key=value belongs to the
  compressor: plain,casq:bits=1,feedback=off names two.

examples:
  ./run                                    five ways at 1 Gb/s, about six minutes on two cores
  ./run --link 100mbit --epochs 0.1        where compression matters most
  ./run --compressors plain,casq:bits=3
  ./run --link none --seeds 6 --epochs 2   accuracy with intervals, as fast as the machine can

The network needs root, or a system that lets users have namespaces of their own, as most do;
elsewhere the workers share loopback, and the output says so. It is deleted at the end, on Ctrl-C,
and when a worker dies.
"""
_SLOW_LINK = 300e6


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="./run", description=_DESCRIPTION, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add, images = result.add_argument, tasks.TASKS[tasks.IMAGES]
    add("--workers", type=_whole, default=4, metavar="N", help="worker processes (default 4)")
    add("--per-host", type=_whole, default=1, metavar="L", help="workers that share a link, for specs like hosts:casq:bits=2 (default 1)")
    add("--task", choices=list(tasks.TASKS), default=tasks.IMAGES,
        help="images: a VGG-like network on Fashion-MNIST; language-model: a word-level LSTM with a "
             "large embedding on text of Debian's python3.11-doc, or of bible-kjv; recommender: "
             "embeddings of users and movies, on MovieLens small in Debian's r-cran-dslabs, or on "
             "ratings that are made up (default images)")
    add("--link", default="1gbit", metavar="RATE",
        help="100mbit, 1gbit, 10gbit or another rate, both ways for each worker; none: loopback, "
             "unshaped (default 1gbit)")
    add("--compressors", nargs="+", metavar="SPEC",
        help=f"what to compare (default {images.compressors}; for the other tasks "
             f"{tasks.TASKS[tasks.LANGUAGE].compressors})")
    add("--model", choices=MODELS, default="vgg",
        help="vgg: 4.3 M parameters, most of them in fully connected layers; resnet: 2.8 M, all in convolutions (default vgg)")
    add("--epochs", type=_positive, metavar="X",
        help=f"passes over the training data, fractions allowed (default {images.epochs}, "
             f"{images.slow_epochs} on links below 300mbit; for the other tasks "
             f"{_each('epochs')}, {_each('slow_epochs')})")
    add("--seeds", type=_whole, default=1, metavar="N",
        help="repeat with N seeds; each gives all compressors the same initial weights and "
             "batches, and differences get an interval (default 1)")
    add("--out", type=Path, default=Path("out"), metavar="DIR", help="folder (default out)")
    add("--resume", action="store_true",
        help="keep the trainings that OUT/results.json holds already")
    advanced = result.add_argument_group("advanced")
    add = advanced.add_argument
    add("--batch", type=_whole, metavar="N",
        help="images, sequences of 35 words, or ratings, per worker and step "
             f"({images.batch}, {_each('batch')})")
    add("--learning-rate", type=_positive, metavar="X",
        help=f"at its highest ({images.learning_rate}, {_each('learning_rate')})")
    add("--train-limit", type=_whole, metavar="N", help="only the first N training examples")
    add("--test-limit", type=_whole, metavar="N", help="only the first N test examples")
    add("--sparse-embedding", action="store_true",
        help="gradients of embeddings are sparse tensors")
    add("--evaluations", type=_whole, default=5, metavar="N",
        help="tests of the score per training (5)")
    add("--timeout", type=_positive, default=120, metavar="S",
        help="seconds that a worker waits for the others (120)")
    add("--data", metavar="DATA",
        help=f"images: folder of the IDX files ({FASHION_MNIST}); else one of "
             f"{', '.join(text.CORPORA)}, or one of {', '.join(ratings.SOURCES)} (the first "
             "that is there)")
    return result


def _each(default: str) -> str:
    """Of the tasks other than images."""
    return ", ".join(f"{getattr(task, default):g}" for task in tasks.TASKS.values() if task.name != tasks.IMAGES)


def settings_of(options: argparse.Namespace) -> Settings:
    """The job that was asked for; ValueError names what is wrong with it."""
    link = network.parse_link(options.link)
    task = tasks.TASKS[options.task]
    compressors = specs.split_specs(" ".join(options.compressors or [task.compressors]))
    specs.check(compressors)
    for spec in filter(specs.corrects_momentum, compressors):
        if "SGD" not in task.optimizer:
            raise ValueError(f"{spec!r}: {task.name} is trained by {task.optimizer}; momentum: is for tasks that SGD trains")
    data = task.find_data(options.data)
    slow = link.shaped and link.bits_per_second < _SLOW_LINK
    epochs = options.epochs or (task.slow_epochs if slow else task.epochs)
    batch = options.batch or task.batch
    result = Settings(
        workers=options.workers, per_host=options.per_host, link=link.name, compressors=compressors, epochs=epochs,
        seeds=list(range(options.seeds)), batch=batch,
        learning_rate=options.learning_rate or task.learning_rate, data=data, train_limit=options.train_limit,
        test_limit=options.test_limit, evaluations=options.evaluations, timeout=options.timeout,
        task=task.name, model=options.model, sparse_embedding=options.sparse_embedding)
    examples = options.train_limit or task.examples
    if examples < options.workers * batch:
        raise ValueError(f"{examples} training examples are less than one step of "
                         f"{options.workers} workers and {batch} each")
    return result


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: expected a positive number")
    return value


def main() -> int:
    options = parser().parse_args()
    if options.link.strip().lower() != "none":
        rootless.enter(sys.argv[1:])
    from bench.training import job, results  # late: --help should not wait for torch and plots
    from bench.training.launcher import WorkerDied

    interrupts.terminate_as_interrupt()
    try:
        settings = settings_of(options)
        earlier = (results.earlier_runs(options.out / "results.json", settings)
                   if options.resume else [])
        job.run(settings, options.out, ["./run", *sys.argv[1:]], earlier)
    except ValueError as error:
        print(f"./run: {error}", file=sys.stderr)
        return 2
    except WorkerDied as error:
        print(f"\n./run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print("\n./run: stopped; finished trainings are in "
              f"{shlex.quote(str(options.out / 'results.json'))}, --resume goes on from there",
              file=sys.stderr)
        return 143 if isinstance(interrupt, interrupts.Terminated) else 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
