"""Runs the project's tests, part by part; ./test has done the set-up before.

Fails on any failed test, on any skipped one that tests/allowed_skips.txt does not list, and where no test was run.
"""

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from xml.sax.saxutils import quoteattr

import check_skips

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
RESULTS = BUILD / "test-results"
ALLOWED_SKIPS = ROOT / "tests/allowed_skips.txt"
# One more than there are cores: many tests wait, for slow networks and for what times out.
JOBS = os.environ.get("THINWIRE_JOBS") or str((os.cpu_count() or 1) + 1)
SHARD_SECONDS = 1200  # more than any share of a program's tests takes, under a sanitizer and on a busy machine
# C++ tests that the thread sanitizer is for, by room; those of numerics would take it half an hour.
THREADED = {
    "core": ["*"],
    "communicators": ["*"],
    "reducer": ["*Threads*", "Lanes.*", "Hosts*", "Pipelining.*", "BrokenOff.*", "Rollback.*", "FaultTrials.*", "StepTrials.*", "*Soak.*", "Link.*Measure*"],
}
GTEST_REPORTS = "*_test-*.xml"  # tests/CMakeLists.txt
PASSED = "[       OK ]"  # in their output, behind a line that says what begins

ENVIRONMENT = {
    # Tests start several workers on few cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Threads get smaller stacks of frames that have returned: to map and unmap them takes the system as long as all else it does.
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:max_uar_stack_size_log=16:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "second_deadlock_stack=1",
}


class PartFailed(Exception):
    """The part's output has said why."""


def run_logged(log, commands, wrapper=()):
    """Runs commands, all their output to RESULTS/log; shows the end of it and raises PartFailed if one fails."""
    path = RESULTS / log
    with path.open("w") as out:
        for command in commands:
            print("$", *command, file=out, flush=True)
            done = subprocess.run([*wrapper, *map(str, command)], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
            if done.returncode != 0:
                print(*path.read_text(errors="replace").splitlines()[-60:], sep="\n")
                raise PartFailed(f"exit status {done.returncode}; all of the output is in {path.relative_to(ROOT)}")
    return path


def build(preset, targets=(), wrapper=()):
    start = time.monotonic()
    run_logged(f"{preset}-build.log", [["scripts/cmake_build.sh", preset, *targets]], wrapper)
    print(f"built in {time.monotonic() - start:.1f} s", flush=True)


def run_ctest(name, folder, options, wrapper=(), suites=("*",)):
    """Prints the failures and ctest's closing lines. GoogleTest's programs choose and report their tests themselves."""
    def reports():
        return [report for report in folder.rglob(GTEST_REPORTS) if RESULTS not in report.parents]

    for report in reports():
        report.unlink()
    command = ["ctest", "--test-dir", folder, "--parallel", JOBS, "--timeout", SHARD_SECONDS, "--output-on-failure",
               "--output-junit", RESULTS / f"{name}.xml"]
    command += ["-R", f"{check_skips.SHARD}|{options.pattern}"] if options.pattern else []
    wanted = f"*{options.pattern}*" if options.pattern else ":".join(suites)
    done = subprocess.run([*wrapper, *map(str, command)], cwd=ROOT, text=True, errors="replace", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=os.environ | {"GTEST_FILTER": wanted})
    (RESULTS / f"{name}.log").write_text(done.stdout)
    for report in reports():
        shutil.copy(report, RESULTS / f"{name}-{report.name}")
    lines = done.stdout.splitlines()
    if done.returncode == 0:
        closing = next((number for number, line in enumerate(lines) if "tests passed" in line), len(lines) - 1)
        lines = lines[closing:]
    else:
        lines = [line for line, following in zip(lines, [*lines[1:], ""], strict=True)
                 if " Passed " not in line and not line.lstrip().startswith("Start ") and not line.startswith("[----------]")
                 and PASSED not in line and PASSED not in following]
    print("\n".join(lines).strip(), flush=True)
    return done.returncode


def cpp(options):
    build("release")
    return run_ctest("cpp", BUILD, options)


def asan(options):
    build("asan", ["tests/all"])
    return run_ctest("asan", ROOT / "build-asan", options)


def fixed_addresses():
    """The sanitizers of older compilers cannot bear how newer kernels randomise addresses."""
    wrapper = ["setarch", platform.machine(), "-R"]
    return wrapper if subprocess.run([*wrapper, "true"], stderr=subprocess.DEVNULL).returncode == 0 else []


def tsan(options):
    wrapper = fixed_addresses()
    build("tsan", [f"tests/{room}/all" for room in THREADED], wrapper)
    return max(run_ctest(f"tsan-{room}", ROOT / "build-tsan/tests" / room, options, wrapper, suites)
               for room, suites in THREADED.items())


def has_fuzzer():
    """Whether the compiler of the preset "fuzz" is there, with its libraries."""
    command = ["clang++-16", "-fsanitize=fuzzer,address,undefined", "-x", "c++", "-", "-o", RESULTS / "fuzzer"]
    target = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
    try:
        return subprocess.run(command, input=target, text=True, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def fuzz(options):
    if has_fuzzer():
        build("fuzz", ["tests/fuzz/all"])
        return run_ctest("fuzz", ROOT / "build-fuzz/tests/fuzz", options, fixed_addresses())
    print("libFuzzer was left out, as clang-16 or libclang-rt-16-dev is missing: the corpus is replayed instead")
    build("release", ["tests/fuzz/all"])
    return run_ctest("fuzz", BUILD / "tests/fuzz", options)


def python(options):
    command = [sys.executable, "-m", "pytest", "-q", "--durations=5", f"--junit-xml={RESULTS}/python.xml", "--numprocesses", JOBS,
               "--no-loadscope-reorder"]
    command += ["-k", options.pattern] if options.pattern else []
    command += ["-m", "not slow"] if options.quick else []
    status = subprocess.run(command, cwd=ROOT).returncode
    no_such_test = status == 5 and options.pattern
    return 0 if no_such_test else status


def single_test(name, commands):
    """A part that is one test: its result is written in the form that the runners give theirs."""
    start, failure = time.monotonic(), ""
    try:
        print(run_logged(f"{name}.log", commands).read_text().splitlines()[-1])
    except PartFailed as error:
        print(error)
        failure = f"<failure message={quoteattr(str(error))}/>"
    (RESULTS / f"{name}.xml").write_text(
        f'<testsuite><testcase name="{name}" classname="{name}" time="{time.monotonic() - start:.3f}">{failure}'
        "</testcase></testsuite>\n")
    return 1 if failure else 0


def install(_):
    """A user's CMake project finds the installed library, links all of it and runs."""
    prefix, user = BUILD / "install-tree", BUILD / "install-user"
    shutil.rmtree(prefix, ignore_errors=True)
    shutil.rmtree(user, ignore_errors=True)
    return single_test("install", [
        ["scripts/cmake_build.sh", "release"],
        ["cmake", "--install", BUILD, "--prefix", prefix],
        ["cmake", "-S", "tests/install", "-B", user, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", user],
        ["cmake", "-E", "chdir", user, "ctest", "--output-on-failure"],
    ])


def package(_):
    """A source distribution, a wheel made of it, and the wheel in an environment without this checkout."""
    folder = BUILD / "package"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return single_test("package", [[sys.executable, "tests/package/try_package.py", folder]])


PARTS = {
    "cpp": (cpp, "C++ tests, release build"),
    "python": (python, "Python tests, those of documentation and scripts among them"),
    "install": (install, "a user's CMake project against the installed library"),
    "package": (package, "a source distribution, its wheel, and the wheel in a fresh environment"),
    "asan": (asan, "C++ tests under the address and undefined-behaviour sanitizers"),
    "tsan": (tsan, "C++ tests that use threads, under the thread sanitizer"),
    "fuzz": (fuzz, "a minute's search for bytes that break what reads them"),
}


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="./test", formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__,
        epilog="parts:\n" + "\n".join(f"  {name:8} {what}" for name, (_, what) in PARTS.items()))
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="only cpp and python, without the tests marked slow")
    parser.add_argument("-k", dest="pattern", metavar="PATTERN",
                        help="only tests with PATTERN in their name (GTEST_FILTER=*PATTERN*, pytest -k); cpp and python, if no part is "
                             "named")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)} (there are {', '.join(PARTS)})")
    if not options.parts:
        options.parts = ["cpp", "python"] if options.quick or options.pattern else list(PARTS)
    return options


def run_part(name, options):
    """Whether it passed, and its counts."""
    function, what = PARTS[name]
    print(f"\n=== {name}: {what}", flush=True)
    try:
        passed = function(options) == 0
    except PartFailed as error:
        print(error)
        passed = False
    reports = sorted(RESULTS.glob(f"{name}*.xml"))
    counts, refused = check_skips.check(reports, check_skips.read_allowed(ALLOWED_SKIPS))
    nothing_ran = not counts["passed"] + counts["failed"] and not options.pattern
    if nothing_ran:
        print(f"{name}: no test was run")
    return passed and not refused and not nothing_ran, counts


def main():
    options = parse_arguments()
    os.environ.update(ENVIRONMENT)
    # Shells start background jobs with Ctrl-C ignored, and every process below would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    summary, total, all_passed = [], dict.fromkeys(check_skips.OUTCOMES, 0), True
    for name in options.parts:
        start = time.monotonic()
        passed, counts = run_part(name, options)
        all_passed &= passed
        total = {outcome: total[outcome] + counts[outcome] for outcome in total}
        summary.append(f"{name:8} {'ok' if passed else 'FAILED':6} {time.monotonic() - start:6.0f} s   "
                       f"{check_skips.text_of(counts)}")
    if not total["passed"] + total["failed"]:
        print("no test was run")
        all_passed = False
    print("\n=== summary", *summary, check_skips.text_of(total), sep="\n", flush=True)
    return 0 if all_passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
