"""The command-line tool, run as users run it. THINWIRE_TOOL is its path; build/thinwire by default."""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = os.environ.get("THINWIRE_TOOL", str(ROOT / "build" / "thinwire"))
WIDEST_LINE = 100
FIGURES = ["rounds", "setup_bytes", "payload_bytes", "second_bytes", "traffic_bytes", "bits_per_element", "nmse_mean",
           "nmse_worker", "seconds"]


def run(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def succeed(*arguments):
    result = run(*arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def succeed_in_json(*arguments):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(succeed(*arguments, "--json"), parse_constant=refuse)


def fail(code, *arguments):
    """The one line on stderr, without its beginning."""
    result = run(*arguments)
    assert result.returncode == code, result.stdout + result.stderr
    assert result.stdout == ""
    line, end = result.stderr[:-1], result.stderr[-1:]
    assert end == "\n" and "\n" not in line
    beginning = "thinwire: error: "
    assert line.startswith(beginning)
    return line[len(beginning):]


@pytest.fixture
def save(tmp_path):
    def save_array(array, name="g.npy"):
        path = tmp_path / name
        np.save(path, array)
        return path

    return save_array


@pytest.fixture
def gradients(save):
    return save(np.random.default_rng(1).standard_normal((4, 5000), dtype=np.float32))


@pytest.fixture
def write(tmp_path):
    def write_text(name, text):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_text


# --- help


@pytest.mark.parametrize("command", [[], ["compressors"], ["exchange"], ["bench"], ["inspect"], ["compare"], ["plan"]])
def test_help_teaches_by_example(command):
    text = succeed(*command, "--help")
    assert "Examples:" in text
    assert "thinwire " + " ".join(command) in text
    assert max(map(len, text.splitlines())) <= WIDEST_LINE


def test_help_explains_exit_codes():
    assert "Exit codes: 0" in succeed("--help")


def test_version():
    assert succeed("--version").split()[0] == "thinwire"


@pytest.mark.parametrize("arguments, mentions", [
    ([], "a command is needed"),
    (["nonsense"], "nonsense"),
    (["--nonsense"], "nonsense"),
    (["compressors", "--nonsense"], "nonsense"),
    (["exchange"], "--compressor"),
    (["exchange", "--compressor", "none"], "--input"),
    (["exchange", "--input", "g.npy"], "--compressor"),
    (["exchange", "--compressor", "none", "--input", "g.npy", "--seed", "-1"], "--seed"),
    (["exchange", "--compressor", "none", "--input", "g.npy", "--seed", "x"], "--seed"),
    (["bench", "--elements", "0"], "--elements"),
    (["bench", "--elements", "-5"], "--elements"),
    (["bench", "--repetitions", "0"], "--repetitions"),
    (["bench", "--threads", "0"], "--threads"),
    (["bench", "--threads", "257"], "--threads"),
    (["exchange", "--compressor", "none", "--input", "g.npy", "--threads", "-1"], "--threads"),
    (["bench", "--all", "--compressor", "none"], "--all"),
])
def test_wrong_command_lines(arguments, mentions):
    message = fail(2, *arguments)
    assert mentions in message
    assert "thinwire --help" in message


def test_output_that_cannot_be_written():
    with open("/dev/full", "w") as full:
        result = subprocess.run([TOOL, "compressors"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr == "thinwire: error: the output cannot be written\n"


# --- compressors


def test_compressors_in_json():
    rows = succeed_in_json("compressors")
    assert rows[0]["name"] == "none"
    names = [row["name"] for row in rows]
    assert {"none", "bf16", "fp16", "casq"} <= set(names)
    assert names[1:] == sorted(names[1:])
    for row in rows:
        assert list(row) == ["name", "family", "description", "bits", "wire_id", "wire_version", "aggregation", "lossless", "unbiased",
                             "contractive", "unit", "takes_stage", "sizes", "learns", "parameters", "reference"]
        assert row["aggregation"] in ("linear", "gather")
        assert row["unit"] in ("element", "row", "slice", "parameter")
        assert isinstance(row["takes_stage"], bool)
        for parameter in row["parameters"]:
            assert parameter["help"] and parameter["allowed"]
            if parameter["kind"] == "choice":
                assert parameter["default"] in parameter["choices"]
            else:
                assert parameter["minimum"] <= parameter["default"] <= parameter["maximum"]


def test_compressors_for_people():
    text = succeed("compressors")
    assert max(map(len, text.splitlines())) <= WIDEST_LINE
    rows = succeed_in_json("compressors")
    lines = [line.split() for line in text.splitlines()]
    for row in rows:  # a line each
        [line] = [line for line in lines if line[:1] == [row["name"]]]
        title = row["description"].partition(":")[0].split()
        assert line[-len(title) :] == title and row["aggregation"] in line
    for family in {row["family"] for row in rows}:
        assert [family] in lines


def test_one_compressor_in_full():
    text = succeed("compressors", "casq")
    assert max(map(len, text.splitlines())) <= WIDEST_LINE
    assert "bits" in text and "fp16" not in text
    [row] = succeed_in_json("compressors", "casq")
    assert row["name"] == "casq"
    bits = next(parameter for parameter in row["parameters"] if parameter["name"] == "bits")
    assert (bits["kind"], bits["minimum"], bits["maximum"]) == ("integer", 1, 8)


def test_a_compressor_there_is_not():
    message = fail(2, "compressors", "zip")
    assert "'zip'" in message and "casq" in message


# --- exchange


def test_exchange_of_none_is_the_mean(gradients, tmp_path):
    output = tmp_path / "mean.npy"
    report = succeed_in_json("exchange", "--compressor", "none", "--input", gradients, "--output", output)
    exact = np.load(gradients).astype(np.float64).mean(axis=0)
    mean = np.load(output)
    assert mean.dtype == np.float32 and mean.shape == (5000,)
    np.testing.assert_allclose(mean, exact, rtol=1e-6, atol=1e-7)
    assert list(report) == ["compressor", "workers", "elements", "steps", *FIGURES]
    assert (report["workers"], report["elements"], report["steps"]) == (4, 5000, 1)
    assert report["nmse_mean"] < 1e-12
    assert report["payload_bytes"] >= 4 * 5000
    assert report["bits_per_element"] == pytest.approx(8 * report["payload_bytes"] / 5000)
    assert report["traffic_bytes"] == pytest.approx(2 * 3 / 4 * report["payload_bytes"])


def test_threads_do_not_change_a_bit(save, tmp_path):
    array = save(np.random.default_rng(1).standard_normal((3, 300_000), dtype=np.float32))
    means = []
    for threads in (1, 3):
        output = tmp_path / f"mean{threads}.npy"
        succeed("exchange", "--compressor", "casq", "--input", array, "--output", output, "--threads", threads)
        means.append(np.load(output))
    assert np.array_equal(*means)


@pytest.mark.parametrize("spec, workers", [("none", 1), ("none", 3), ("bf16", 4), ("fp16", 2), ("casq:bits=2", 1),
                                           ("casq:bits=3", 5)])
def test_reported_errors_are_those_of_the_output(save, tmp_path, spec, workers):
    array = np.random.default_rng(2).standard_normal((workers, 3000), dtype=np.float32)
    report = succeed_in_json("exchange", "--compressor", spec, "--input", save(array), "--output", tmp_path / "m.npy")
    exact = array.astype(np.float64).mean(axis=0)
    error = np.square(np.load(tmp_path / "m.npy") - exact).sum() / np.square(exact).sum()
    assert report["nmse_mean"] == pytest.approx(error, rel=1e-3, abs=1e-13)
    assert report["compressor"].startswith(spec.split(":")[0])


def test_casq_is_small_and_good_enough(save):
    array = np.random.default_rng(3).standard_normal((4, 200_000), dtype=np.float32)
    report = succeed_in_json("exchange", "--compressor", "casq:bits=2", "--input", save(array))
    assert 2.0 <= report["bits_per_element"] < 2.2
    assert 0.1 < report["nmse_worker"] < 0.17
    # Gradients and errors are independent here: both shrink alike in the mean.
    assert report["nmse_mean"] == pytest.approx(report["nmse_worker"], rel=0.05)


def test_several_steps(save, tmp_path):
    array = np.random.default_rng(4).standard_normal((3, 2, 4000), dtype=np.float32)
    report = succeed_in_json("exchange", "--compressor", "casq:bits=1", "--input", save(array), "--output",
                             tmp_path / "m.npy")
    assert np.load(tmp_path / "m.npy").shape == (3, 4000)
    assert report["steps"] == 3
    assert [list(step) for step in report["per_step"]] == [FIGURES] * 3
    for key in ("payload_bytes", "traffic_bytes", "rounds"):
        assert report[key] == pytest.approx(np.mean([step[key] for step in report["per_step"]]))


def test_one_step_with_its_dimension(save, tmp_path):
    report = succeed_in_json("exchange", "--compressor", "none", "--input", save(np.ones((1, 2, 7), np.float32)),
                             "--output", tmp_path / "m.npy")
    assert np.load(tmp_path / "m.npy").shape == (1, 7)
    assert "per_step" not in report


def test_seed_and_repeatability(gradients, tmp_path):
    means = []
    for name, seed in [("a", 7), ("b", 7)]:
        succeed("exchange", "--compressor", "casq", "--input", gradients, "--seed", seed, "--output", tmp_path / name)
        means.append((tmp_path / name).read_bytes())
    assert means[0] == means[1]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_null(save, tmp_path, value):
    array = np.ones((2, 3000), np.float32)
    array[1, 17] = value
    report = succeed_in_json("exchange", "--compressor", "casq", "--input", save(array), "--output", tmp_path / "m.npy")
    assert report["nmse_mean"] is None
    assert not np.isfinite(np.load(tmp_path / "m.npy")).all()
    assert "-" in succeed("exchange", "--compressor", "casq", "--input", save(array))


def test_a_gradient_of_zeros_has_no_relative_error(save):
    report = succeed_in_json("exchange", "--compressor", "casq", "--input", save(np.zeros((2, 3000), np.float32)))
    assert report["nmse_mean"] is None and report["nmse_worker"] is None


LAYOUT = [{"name": "fc.bias", "shape": [1000], "offset": 4000}, {"name": "fc.weight", "shape": [40, 100], "offset": 0}]


def test_layout_and_rules(gradients, write, tmp_path):
    layout = write("layers.json", json.dumps(LAYOUT))
    rules = '{"*.bias": "none"}'
    exact = np.load(gradients).mean(axis=0)
    for given in (rules, write("rules.json", rules), f"@{tmp_path / 'rules.json'}"):
        succeed("exchange", "--compressor", "casq", "--input", gradients, "--layout", layout, "--rules", given,
                "--output", tmp_path / "m.npy")
        mean = np.load(tmp_path / "m.npy")
        np.testing.assert_allclose(mean[4000:], exact[4000:], rtol=1e-5, atol=1e-6)
        assert np.abs(mean[:4000] - exact[:4000]).max() > 0.01


def test_exchange_for_people(save):
    array = np.random.default_rng(5).standard_normal((50, 2, 100), dtype=np.float32)
    text = succeed("exchange", "--compressor", "casq:bits=2", "--input", save(array))
    assert max(map(len, text.splitlines())) <= WIDEST_LINE
    for word in ("2 workers", "100 elements", "50 steps", "bits an element", "nmse worker", "..."):
        assert word in text
    assert len(text.splitlines()) < 50


def exchange_fails(code, array_path, *arguments, compressor="none"):
    return fail(code, "exchange", "--compressor", compressor, "--input", array_path, *arguments)


@pytest.mark.parametrize("array, mentions", [
    (np.ones(5, np.float32), ["(5,)", "(workers, n)"]),
    (np.ones((1, 1, 1, 5), np.float32), ["(1, 1, 1, 5)"]),
    (np.ones((4, 0), np.float32), ["(4, 0)", "at least one"]),
    (np.ones((5000, 2), np.float32), ["5000 workers", "before the elements"]),
    (np.ones((2, 5)), ["'<f8'", "astype('<f4')"]),
    (np.ones((2, 5), ">f4"), ["'>f4'"]),
    (np.asfortranarray(np.ones((2, 5), np.float32)), ["Fortran order", "ascontiguousarray"]),
    (np.array([["a"]]), ["'<U1'"]),
    (np.zeros((2, 2), [("a", "<f4"), ("b", "<f4")]), ["records"]),
])
def test_arrays_of_another_kind(save, array, mentions):
    message = exchange_fails(1, save(array))
    for part in ["g.npy: ", *mentions]:
        assert part in message


def test_files_that_are_no_arrays(tmp_path, write, save):
    assert "No such file" in exchange_fails(1, tmp_path / "none.npy")
    assert "is not a file" in exchange_fails(1, tmp_path)
    assert "does not begin like a .npy file" in exchange_fails(1, write("text.npy", "hello"))
    np.savez(tmp_path / "a.npz", np.ones(3))
    assert ".npz" in exchange_fails(1, tmp_path / "a.npz")
    whole = save(np.ones((2, 5), np.float32)).read_bytes()
    for damaged in (whole[:-1], whole + b"x"):
        (tmp_path / "damaged.npy").write_bytes(damaged)
        assert "4 times 10" in exchange_fails(1, tmp_path / "damaged.npy")


@pytest.mark.parametrize("spec, mentions", [
    ("zip", "zip"),
    ("casq:bits=9", "bits"),
    ("casq:bits=", "bits"),
    ("casq:nonsense=1", "nonsense"),
    ("casq:bits=2,bits=3", "bits"),
    ("", "spec"),
])
def test_wrong_specs(gradients, spec, mentions):
    assert mentions in exchange_fails(2, gradients, compressor=spec)
    assert mentions in fail(2, "bench", "--compressor", spec)


@pytest.mark.parametrize("rules", ["", "{", "{\"a\": 1}", "{\"*\": \"zip\"}"])
def test_wrong_rules(gradients, rules):
    assert exchange_fails(2, gradients, "--rules", rules)


def test_wrong_layouts_and_rule_files(gradients, write, tmp_path):
    assert "No such file" in exchange_fails(1, gradients, "--layout", tmp_path / "none.json")
    assert "No such file" in exchange_fails(1, gradients, "--rules", "@none.json")
    assert "is not JSON" in exchange_fails(1, gradients, "--layout", write("l.json", "nonsense"))
    message = exchange_fails(1, gradients, "--layout", write("l.json", json.dumps(LAYOUT[1:])))
    assert "describes 4000 elements" in message and "5000" in message


def test_output_in_no_folder(gradients, tmp_path):
    assert "cannot be written" in exchange_fails(1, gradients, "--output", tmp_path / "no" / "m.npy")


# --- bench


def test_bench_in_json():
    report = succeed_in_json("bench", "--elements", 200_000, "--repetitions", 2)
    assert list(report) == ["read_gbs", "elements", "rows"]
    assert report["read_gbs"] > 0 and report["elements"] == 200_000
    assert [row["compressor"] for row in report["rows"]] == [row["name"] for row in succeed_in_json("compressors")]
    takes_feedback = {row["name"]: any(p["name"] == "feedback" for p in row["parameters"])
                      for row in succeed_in_json("compressors")}
    for row in report["rows"]:
        assert list(row) == ["compressor", "encode_gbs", "decode_gbs", "encode_feedback_gbs"]
        assert row["encode_gbs"] > 0 and row["decode_gbs"] > 0
        assert (row["encode_feedback_gbs"] is not None) == takes_feedback[row["compressor"]]


def test_bench_with_several_threads():
    report = succeed_in_json("bench", "--compressor", "bf16", "--elements", 200_000, "--repetitions", 1, "--threads", 2)
    assert list(report) == ["read_gbs", "elements", "threads", "rows"] and report["threads"] == 2
    assert "2 threads" in succeed("bench", "--compressor", "bf16", "--elements", 10_000, "--repetitions", 1, "--threads", 2)


def test_bench_of_chosen_specs():
    specs = ["casq:bits=3", "bf16", "casq:feedback=off"]
    arguments = [argument for spec in specs for argument in ("--compressor", spec)]
    report = succeed_in_json("bench", *arguments, "--elements", 7, "--repetitions", 1)
    assert [row["compressor"] for row in report["rows"]] == specs


@pytest.mark.parametrize("spec", ["casq:bits=2,reduce=scatter", "qsgd:bits=4,reduce=scatter", "qsgd:bits=4,reduce=sum"])
@pytest.mark.parametrize("elements", [7, 100_000])  # owners of one chunk and none, of two and two
def test_bench_of_other_ways_to_reduce(spec, elements):
    (row,) = succeed_in_json("bench", "--compressor", spec, "--elements", elements, "--repetitions", 1)["rows"]
    assert row["encode_gbs"] > 0 and row["decode_gbs"] > 0


def test_bench_for_people():
    text = succeed("bench", "--all", "--elements", 10_000, "--repetitions", 3)
    assert max(map(len, text.splitlines())) <= WIDEST_LINE
    for word in ("compressor", "encode", "decode", "with feedback", "GB/s", "casq", "10,000"):
        assert word in text
