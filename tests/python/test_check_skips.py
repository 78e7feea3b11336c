"""Skipped tests are found in both runners' reports, and only listed ones pass."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_skips.py"
spec = importlib.util.spec_from_file_location("check_skips", SCRIPT)
check_skips = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_skips)

CTEST = """<testsuite name="Linux" tests="3">
  <testcase name="Bits.Pack" classname="Bits.Pack" status="run"/>
  <testcase name="Bits.Skip" classname="Bits.Skip" status="notrun">
    <skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>
  <testcase name="Bits.Off" classname="Bits.Off" status="disabled"/>
  <testcase name="Bits.Bad" classname="Bits.Bad" status="fail"><failure message="Failed"/></testcase>
  <testcase name="core_test/1" classname="core_test/1" status="run"/>
  <testcase name="core_test/2" classname="core_test/2" status="fail"><failure message="Timeout"/></testcase>
</testsuite>"""
GOOGLETEST = """<testsuites name="AllTests"><testsuite name="Bits">
  <testcase name="Pack" classname="Bits" status="run" result="completed"/>
  <testcase name="Bad" classname="Bits" status="run" result="completed"><failure message="x"/></testcase>
  <testcase name="Skip" classname="Bits" status="run" result="skipped"><skipped message="no AVX-512"/></testcase>
  <testcase name="Off" classname="Bits" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite name="pytest">
  <testcase classname="tests.python.test_hook" name="test_gpu"><skipped message="no GPU"/></testcase>
  <testcase classname="tests.python.test_hook" name="test_cpu"/>
</testsuite></testsuites>"""


@pytest.fixture
def check(tmp_path, capsys):
    """Runs the script on one report; gives its exit status and the lines it printed."""

    def run(report, allowed=""):
        (tmp_path / "report.xml").write_text(report)
        (tmp_path / "allowed.txt").write_text(allowed)
        status = check_skips.main(["--allowed", str(tmp_path / "allowed.txt"), str(tmp_path / "report.xml")])
        return status, capsys.readouterr().out.splitlines()

    return run


def test_counts_what_ctest_reports_and_refuses_its_skips(check):
    status, lines = check(CTEST)
    assert status == 1
    assert lines[-1] == "1 passed, 2 failed, 2 skipped"  # a share of a program that passed is no test, but one that ended early is
    assert sum("NOT ALLOWED" in line for line in lines) == 2


def test_counts_what_googletest_reports_and_refuses_its_skips(check):
    status, lines = check(GOOGLETEST)
    assert status == 1
    assert lines == [
        "skipped: Bits::Skip (no AVX-512): NOT ALLOWED",
        "skipped: Bits::Off (no reason given): NOT ALLOWED",
        "1 passed, 1 failed, 2 skipped",
    ]


def test_counts_what_pytest_reports_and_says_why_it_skipped(check):
    status, lines = check(PYTEST)
    assert status == 1
    assert lines == [
        "skipped: tests.python.test_hook::test_gpu (no GPU): NOT ALLOWED",
        "1 passed, 0 failed, 1 skipped",
    ]


def test_allows_what_is_listed_with_a_reason(check):
    status, lines = check(PYTEST, "# why not\n\ntests.python.*::test_gpu | needs a GPU\n")
    assert status == 0
    assert lines[0] == "skipped: tests.python.test_hook::test_gpu (needs a GPU)"


@pytest.mark.parametrize("line", ["tests.python.test_hook::test_gpu", "name |  ", " | reason"])
def test_a_listed_skip_needs_a_name_and_a_reason(check, line):
    assert check(PYTEST, line)[0] == 2


def test_a_report_that_is_missing_or_broken_is_an_error(check, tmp_path):
    assert check("<testsuite>")[0] == 2
    assert check_skips.main(["--allowed", str(tmp_path / "allowed.txt"), str(tmp_path / "none.xml")]) == 2
