"""Counts the tests of JUnit reports (of ctest, GoogleTest and pytest), and refuses skipped ones that nobody has allowed.

    check_skips.py --allowed LIST REPORT ...

The last line printed is "N passed, N failed, N skipped". Exit status: 0, or 1 when a skipped test is not in the list of
allowed ones, or 2 when the list or a report cannot be read.
"""

import argparse
import fnmatch
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

OUTCOMES = ("passed", "failed", "skipped")
SHARD = "_test/[0-9]+$"  # what ctest calls a share of a GoogleTest program's cases, which reports them itself if it comes so far; a pattern for both


def read_allowed(path):
    """Pairs of name pattern and reason. Raises ValueError on a line that lacks one of them."""
    allowed = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, reason = (part.strip() for part in line.partition("|"))
        if not pattern or not reason:
            raise ValueError(f'{path}:{number}: want "name | reason", got "{line}"')
        allowed.append((pattern, reason))
    return allowed


def name_of(case):
    """ctest gives the name twice; pytest gives the module and the test, GoogleTest the suite and the test."""
    name, classname = case.get("name"), case.get("classname")
    return name if classname in (None, "", name) else f"{classname}::{name}"


def read_report(path):
    """Triples of name, outcome and, of skipped tests, the runner's message."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            yield name_of(case), "failed", ""
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            yield name_of(case), "skipped", "" if skipped is None else skipped.get("message", "")
        elif not re.search(SHARD, name_of(case)):
            yield name_of(case), "passed", ""


def check(reports, allowed):
    """Prints every skipped test. Returns how many tests had each outcome, and how many skips were not allowed."""
    counts, refused = dict.fromkeys(OUTCOMES, 0), 0
    for name, outcome, message in (case for path in reports for case in read_report(path)):
        counts[outcome] += 1
        if outcome == "skipped":
            reason = next((reason for pattern, reason in allowed if fnmatch.fnmatchcase(name, pattern)), None)
            refused += reason is None
            print(f"skipped: {name} ({reason or message or 'no reason given'})" + ("" if reason else ": NOT ALLOWED"))
    return counts, refused


def text_of(counts):
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allowed", required=True, help="the list of skips that are allowed, with reasons")
    parser.add_argument("reports", nargs="+", help="JUnit files")
    options = parser.parse_args(arguments)
    try:
        counts, refused = check(options.reports, read_allowed(options.allowed))
    except (OSError, ValueError, ElementTree.ParseError) as error:
        print(f"check_skips: {error}", file=sys.stderr)
        return 2
    print(text_of(counts))
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
