"""`thinwire plan`: bytes and rounds are those of an exchange, buckets those of DDP, and steps what the model makes of both."""

import json
import re

import numpy as np
import pytest
import torch
from test_tool import ROOT, WIDEST_LINE, fail, save, succeed, succeed_in_json, write  # noqa: F401

SMALL = "--elements", "100000"  # one bucket
FEW = "--compressor", "bf16", "--compressor", "casq:bits=2,reduce=scatter"
HEADERS = 1514 / 1448  # bytes on the link for each that is sent


def plan(*arguments):
    result = succeed_in_json("plan", *arguments)
    return result, {row["compressor"]: row for row in result["rows"]}


def codec_of(bucket):
    return bucket["encode_seconds"] + bucket["between_seconds"] + bucket["decode_seconds"]


def layout_of(shapes):
    ends = np.cumsum([0] + [int(np.prod(shape)) for shape in shapes])
    return json.dumps([{"name": f"p{i}", "shape": shape, "offset": int(end)} for i, (shape, end) in enumerate(zip(shapes, ends))])


def test_one_bucket_adds_up():
    result, rows = plan("--link", "8mbit", "--latency", "3ms", "--workers", "3", "--sending", "0.01ns", *SMALL, *FEW)
    given = {"link_bits_per_second": 8e6, "round_seconds": 0.003, "workers": 3, "elements": 100_000, "compute_seconds": 0, "lanes": 4}
    assert {key: result[key] for key in given} == given
    assert result["measured"] == {"elements": 100_000, "workers": [3]}
    assert [row["step_seconds"] for row in result["rows"]] == sorted(row["step_seconds"] for row in result["rows"])
    for row in rows.values():
        [bucket] = row["buckets"]
        codec = codec_of(bucket)
        assert 0 < codec < 1 and row["codec_seconds"] == pytest.approx(codec)
        assert row["wire_seconds"] == pytest.approx(HEADERS * bucket["bytes"] / 1e6)
        assert row["sending_seconds"] == pytest.approx(0.01e-9 * bucket["bytes"])  # meanwhile
        assert row["step_seconds"] == pytest.approx(codec + HEADERS * bucket["bytes"] / 1e6 + 0.003 * bucket["rounds"])
        assert row["waiting_seconds"] == row["step_seconds"]
        assert row["traffic_bytes"] == bucket["bytes"] and row["rounds"] == bucket["rounds"]
        assert row["bits_per_element"] == pytest.approx(8 * bucket["bytes"] / 100_000)
        assert row["speedup"] == pytest.approx(rows["none"]["step_seconds"] / row["step_seconds"])
    assert rows["none"]["rounds"] == 1 and rows["none"]["nmse_worker"] == 0
    assert rows["none"]["bits_per_element"] == pytest.approx(32 * 4 / 3, rel=1e-3)
    assert rows["none"]["pays"] == "never"
    assert [rows[spec]["buckets"][0]["hops"] for spec in ("none", *FEW[1::2])] == [4, 4, 2]  # two sums go around the ring

    def seconds(spec, bits_per_second):
        [bucket] = rows[spec]["buckets"]
        on_link = 8 * HEADERS * bucket["bytes"] / bits_per_second
        behind_first = max(0, 8 * (HEADERS * bucket["bytes"] / bucket["hops"] - 61_440) / bits_per_second)
        return codec_of(bucket) + on_link + 0.003 * bucket["rounds"] + (bucket["hops"] - bucket["rounds"]) * max(0, 0.003 - behind_first)

    for spec in FEW[1::2]:
        assert rows[spec]["limit"] == "link"
        if rows[spec]["pays"] == "below":  # at that rate both take as long
            rate = rows[spec]["pays_below_bits_per_second"]
            assert seconds(spec, rate) == pytest.approx(seconds("none", rate))
        else:
            assert rows[spec]["pays"] == "always" and seconds(spec, 1e15) < seconds("none", 1e15)


@pytest.mark.parametrize("spec", [
    "bf16", "casq:bits=3,reduce=gather", "casq:bits=2,reduce=scatter", "topk:density=0.05", "eden:bits=2", "powersgd:rank=2"])
def test_bytes_rounds_and_errors_are_an_exchanges(spec, save, write):  # noqa: F811
    layout = write("layout.json", layout_of([(400, 500)]))
    _, rows = plan("--link", "1gbit", "--workers", "4", "--layout", layout, "--compressor", spec)
    noise = save(np.random.default_rng(3).standard_normal((2, 4, 400 * 500), dtype=np.float32))
    first, later = succeed_in_json("exchange", "--compressor", spec, "--input", noise, "--layout", layout)["per_step"]
    assert rows[spec]["traffic_bytes"] == pytest.approx(later["traffic_bytes"])
    assert rows[spec]["rounds"] == later["rounds"]
    # This noise has one scale and the tool's several, which is all the same to these.
    if spec in ("bf16", "eden:bits=2", "powersgd:rank=2"):
        assert rows[spec]["nmse_worker"] == pytest.approx(first["nmse_worker"], rel=0.2)


def test_buckets_are_ddps(write):  # noqa: F811
    shapes = [[300, 1000], [7], [2000, 900], [2000, 3000], [4000], [10, 10], [1500, 1000]]
    result, rows = plan("--link", "1gbit", "--workers", "2", "--layout", write("layout.json", layout_of(shapes)), "--compute", "0.3", *FEW)
    tensors = [torch.empty(shape) for shape in reversed(shapes)]
    wanted, _ = torch._C._distributed_c10d._compute_bucket_assignment_by_size(tensors, [1 << 20, 25 << 20])
    sizes = [sum(tensors[index].numel() for index in bucket) for bucket in wanted]
    assert len(sizes) > 2
    for row in rows.values():
        assert [bucket["elements"] for bucket in row["buckets"]] == sizes
        done = np.cumsum(sizes) / sum(sizes)
        assert [bucket["ready_seconds"] for bucket in row["buckets"]] == pytest.approx(list(0.1 + 0.2 * done))
        assert row["step_seconds"] >= 0.3
    assert result["elements"] == sum(sizes)


def test_buckets_have_the_size_that_is_given():
    _, rows = plan("--link", "1gbit", *SMALL, "--bucket-mb", "0.1", "--compressor", "none")
    assert [bucket["elements"] for bucket in rows["none"]["buckets"]] == [26214, 26214, 26214, 21358]


def test_small_parameters_travel_uncompressed(write):  # noqa: F811
    layout = write("layout.json", layout_of([[1000, 100], [50_000], [31, 33]]))
    arguments = "--link", "1gbit", "--layout", layout, "--compressor", "casq:bits=2"
    sent = plan(*arguments)[1]["casq:bits=2"]["bits_per_element"]
    small, compressed = 50_000 + 31 * 33, 1000 * 100  # at 48 bits, those of an all-reduce, and at three times two
    assert sent == pytest.approx((48 * small + 6 * compressed) / (small + compressed), rel=0.02)


HOSTS = "--link", "8mbit", "--latency", "3ms", "--sending", "0ns"
TWO_SPECS = "--compressor", "none", "--compressor", "casq:bits=2,reduce=gather", "--compressor", "casq:bits=2,reduce=scatter"


def test_workers_of_a_host_share_its_link(write):  # noqa: F811
    """Of two hosts each of three workers sends a third of what two workers would; a ring of plain sums leaves each host once."""
    layout = write("layout.json", layout_of([(384, 1536)]))  # a part has six chunks
    result, rows = plan(*HOSTS, "--hosts", "2x3", "--layout", layout, *TWO_SPECS)
    assert (result["workers"], result["per_host"], result["measured"]["hosts"]) == (6, 3, [2])
    assert set(rows) == {"none", "hosts:none", "hosts:casq:bits=2,reduce=gather", "hosts:casq:bits=2,reduce=scatter"}
    assert {bucket["hops"] for bucket in rows["none"]["buckets"]} == {4}  # of ten steps of six workers every third goes from host to host
    alone = plan(*HOSTS, "--workers", "2", "--layout", layout, *TWO_SPECS)[1]
    for name, row in rows.items():
        [bucket] = row["buckets"]
        senders = 3 if name.startswith("hosts:") else 1
        wire = HEADERS * senders * bucket["bytes"] / 1e6
        assert row["wire_seconds"] == pytest.approx(wire)
        assert row["bits_per_element"] == pytest.approx(8 * senders * bucket["bytes"] / (384 * 1536))
        codec = codec_of(bucket)
        assert row["step_seconds"] == pytest.approx(codec + wire + 0.003 * bucket["rounds"])
        if name != "none":
            of_one = alone[name.removeprefix("hosts:")]
            assert row["rounds"] == of_one["rounds"]  # what workers of a host do for each other is no round on the link
            assert row["bits_per_element"] == pytest.approx(of_one["bits_per_element"], rel=0.01)
    assert rows["none"]["bits_per_element"] == pytest.approx(32 * 2 * 5 / 6, rel=1e-3)
    assert rows["hosts:none"]["bits_per_element"] == pytest.approx(32, rel=1e-3)


def test_more_hosts_follow_from_two_numbers():
    result, rows = plan(*HOSTS, "--hosts", "100x2", "--elements", "2000000", *TWO_SPECS)
    assert result["measured"]["hosts"] == [8, 16] and result["measured"]["workers"] == [13, 27]
    # Owners average whole chunks, of 4,096: a worker of a host has 32 of the first bucket, so that some have one, and 213 of the second, so that some have three.
    assert rows["hosts:casq:bits=2,reduce=scatter"]["bits_per_element"] == pytest.approx(2 * 2 * 99 * (1 + 3) * 4_096 / 1_000_000, rel=0.05)
    assert rows["hosts:casq:bits=2,reduce=gather"]["bits_per_element"] == pytest.approx(2 * 99, rel=0.15)


def test_hosts_are_hosts_of_workers():
    assert "'4' is not hosts x workers of each, such as 4x8" in fail(2, "plan", "--link", "1gbit", "--hosts", "4")
    assert "--workers" in fail(2, "plan", "--link", "1gbit", "--hosts", "4x2", "--workers", "8")


def test_a_faster_link_takes_no_longer():
    steps = [plan("--link", link, *SMALL, "--compressor", "none")[1]["none"]["step_seconds"] for link in ("1mbit", "10mbit", "100mbit")]
    assert steps[0] > 5 * steps[1] > 25 * steps[2]


def test_latency_counts_rounds():
    rows = plan("--link", "10gbit", "--latency", "1s", *SMALL, *FEW)[1]
    assert rows["bf16"]["step_seconds"] == pytest.approx(6, abs=0.2)  # around the ring of four workers, and around again
    scatter = rows["casq:bits=2,reduce=scatter"]
    assert scatter["step_seconds"] == pytest.approx(2, abs=0.2) and scatter["limit"] == "rounds" and scatter["pays"] == "always"


@pytest.mark.parametrize("hidden", [0, 0.25, 1])
def test_what_is_not_hidden_delays_the_computation(hidden):
    """Of two buckets the first is averaged long before the second is ready, which the computation's end makes it."""
    spec = "casq:bits=2,reduce=scatter"
    arguments = "--link", "1gbit", "--latency", "1ms", *SMALL, "--bucket-mb", "0.2", "--compute", "30", "--sending", "0ns", "--compressor", spec
    row = plan(*arguments, "--hidden", hidden)[1][spec]
    codec = [codec_of(bucket) for bucket in row["buckets"]]
    last = row["buckets"][1]
    waiting = codec[1] + HEADERS * last["bytes"] / 125e6 + 0.001 * last["rounds"]
    assert row["waiting_seconds"] == pytest.approx(waiting)
    # While the first is at the processor, both go on at (1 + hidden) / 2 of their pace.
    assert row["step_seconds"] == pytest.approx(30 + (1 - hidden) / (1 + hidden) * codec[0] + waiting, abs=1e-9)
    assert row["limit"] == "computation"


def test_workers_that_share_cores_take_longer():
    arguments = "--link", "100000gbit", "--latency", "0us", "--workers", "4", "--sending", "100ns", *SMALL, *FEW
    for cores, threads, codecs, sending in ((None, 1, 1, 1), (4, 1, 1, 1), (2, 1, 2, 2), (2, 2, 4, 2), (3, 1, 4 / 3, 4 / 3)):
        result, rows = plan(*arguments, "--threads", threads, *(("--cores", cores) if cores else ()))
        assert (result["cores"], result["sending_seconds_per_byte"]) == (cores, pytest.approx(100e-9))
        for row in rows.values():
            [bucket] = row["buckets"]
            codec = codecs * codec_of(bucket)
            assert row["codec_seconds"] == pytest.approx(codec)
            assert row["sending_seconds"] == pytest.approx(sending * 100e-9 * bucket["bytes"])
            assert row["step_seconds"] == pytest.approx(codec + row["sending_seconds"], rel=1e-3)
        assert rows["none"]["limit"] == "sending"


def test_sending_is_measured():
    assert 1e-11 < plan("--link", "1gbit", *SMALL, "--compressor", "none")[0]["sending_seconds_per_byte"] < 1e-7


def measured_row(**differences):
    return {"link": "8mbit", "elements": 100_000, "path": "DDP", "compressor": "plain", "seconds": 0.6, "traffic_bytes": 600_000,
            "round_seconds": 0.001, "lanes": None} | differences


def network_file(write, rows, **settings):  # noqa: F811
    return write("network.json", json.dumps({"settings": {"workers": "4"} | settings, "rows": rows}))


def test_predictions_beside_what_was_measured(write):  # noqa: F811
    rows = [
        measured_row(processor_seconds=0.5),  # of the fewest elements, so that it does not say what sending takes
        measured_row(elements=200_000, seconds=1.4, traffic_bytes=1_200_000, processor_seconds=0.006),
        measured_row(elements=200_000, link="4mbit", seconds=2.6, traffic_bytes=1_200_000, payload_bits_per_second=3e6),
        measured_row(compressor="thinwire:bf16", seconds=0.3, lanes=2),
        measured_row(path="MPI", link="2mbit", compressor="casq:bits=2,reduce=gather", seconds=0.4, lanes=1, bucket_elements=100_000),
        measured_row(compressor="(no exchange)", link="2mbit"),
        *(measured_row(compressor=spec) for spec in ("bf16", "powersgd")),
        measured_row(path="MPI", compressor="hosts:casq:bits=2"),
        measured_row(link="none"),
    ]
    path = network_file(write, rows)
    result = succeed_in_json("plan", "--measured", path)
    sending = [row["sending_seconds_per_byte"] for row in result["rows"]]
    assert sending[:4] == pytest.approx([5e-9] * 4) and 1e-11 < sending[4] < 1e-7 and result["left_out"] == 5  # the last is measured
    assert [(row["path"], row["compressor"], row["measured_seconds"]) for row in result["rows"]] == [
        (row["path"], row["compressor"], row["seconds"]) for row in rows[:5]]
    wires = [0.6 * HEADERS, 1.2 * HEADERS, 3.2, 0.3 * HEADERS, 0.3 * HEADERS]  # the third as sockets found the link
    assert [row["predicted_seconds"] for row in result["rows"]] == pytest.approx(wires, rel=0.1, abs=0.01)
    off = sorted(abs(row["predicted_seconds"] / row["measured_seconds"] - 1) for row in result["rows"])
    assert result["median_off"] == pytest.approx(off[2]) and result["worst_off"] == pytest.approx(off[-1])
    text = succeed("plan", "--measured", path, "--sending", "1us", "--cores", "3")
    assert "3 cores for all workers" in text and text.count(" 1,000\n") == 5 and "5 rows are left out" in text
    assert max(map(len, text.splitlines())) <= WIDEST_LINE


def test_of_workers_that_share_a_link_what_goes_on_two_levels_is_predicted(write):  # noqa: F811
    few = {"elements": 131_072, "traffic_bytes": 786_432, "processor_seconds": 0}  # four chunks, two for each worker of a host
    specs = ["plain", "hosts:casq:bits=2,reduce=gather", "hosts:thinwire:bf16", "casq:bits=2,reduce=gather"]
    rows = [measured_row(compressor=spec, **few) for spec in specs]
    result = succeed_in_json("plan", "--measured", network_file(write, rows, per_host="2"), "--sending", "0ns")
    assert [row["compressor"] for row in result["rows"]] == specs[:3] and result["left_out"] == 1
    wires = [HEADERS * bits / 8 * 131_072 / 1e6 for bits in (32 * 1.5, 2, 16)]
    assert [row["predicted_seconds"] for row in result["rows"]] == pytest.approx(wires, rel=0.1, abs=0.005)


def test_what_ddp_does_itself_is_predicted_too(write):  # noqa: F811
    alone = {"compressor": "(no exchange)", "seconds": 0.5, "processor_seconds": 0.003, "traffic_bytes": 0}
    rows = [measured_row(processor_seconds=0.006), measured_row(**alone), measured_row(**alone | {"link": "4mbit", "seconds": 0.4}),
            measured_row(path="MPI"), measured_row(start_seconds=0.25), measured_row(path="MPI", start_seconds=0.25)]
    result = succeed_in_json("plan", "--measured", network_file(write, rows), "--cores", "8")
    assert [row["sending_seconds_per_byte"] for row in result["rows"]] == pytest.approx([5e-9] * 4)
    wire = 0.6 * HEADERS
    assert [row["predicted_seconds"] for row in result["rows"]] == pytest.approx([0.5 + wire, wire, 0.75 + wire, 0.25 + wire], rel=0.05)


def test_sending_is_what_plain_sums_take_that_the_link_does_not_bound(write):  # noqa: F811
    fast = {"link": "800mbit", "traffic_bytes": 600_000}  # 6 ms on the wire
    rows = [measured_row(path="MPI", seconds=0.03, processor_seconds=1, **fast), measured_row(path="MPI"),
            measured_row(seconds=0.05, **fast), measured_row(compressor="(no exchange)", seconds=0.01, traffic_bytes=0, link="800mbit"),
            measured_row(link="4mbit", processor_seconds=0.06), measured_row(path="MPI", link="4mbit")]
    result = succeed_in_json("plan", "--measured", network_file(write, rows), "--cores", "2")
    sending = [0.03 / 2, 0.03 / 2, 0.04 / 2, 0.06, 0.06]  # of the slow link as much as was counted there
    assert [row["sending_seconds_per_byte"] for row in result["rows"]] == pytest.approx([seconds / 600_000 for seconds in sending])
    assert result["rows"][0]["predicted_seconds"] == pytest.approx(0.03, rel=0.1)


def test_sending_of_short_gradients_takes_no_more_than_plain_sums_as_short(write):  # noqa: F811
    long = {"path": "MPI", "link": "800mbit", "seconds": 0.03, "traffic_bytes": 600_000}
    short = long | {"elements": 50_000, "seconds": 0.01, "traffic_bytes": 300_000}  # from caches
    shorter = long | {"elements": 20_000, "seconds": 0.03, "traffic_bytes": 120_000}  # which rounds made long
    rows = [measured_row(**each) for each in (long, short, short | {"compressor": "bf16", "traffic_bytes": 150_000}, shorter)]
    result = succeed_in_json("plan", "--measured", network_file(write, rows), "--cores", "2")
    sending = [0.03 / 2 / 600_000, 0.01 / 2 / 300_000, 0.01 / 2 / 300_000, 0.03 / 2 / 600_000]
    assert [row["sending_seconds_per_byte"] for row in result["rows"]] == pytest.approx(sending)


def test_predictions_beside_what_was_simulated(write):  # noqa: F811
    row = {"link": "8mbit", "payload_bits_per_second": 7.5e6, "ranks": 3, "ranks_a_host": 1, "elements": 100_000, "compressor": "bf16", "spec": "bf16", "seconds": 0.28,
           "plain_seconds": 0.57, "latency_seconds": 0.001, "lanes": 1, "bucket_elements": 50_000}  # fmt: skip
    by_auto = {"compressor": "auto", "spec": "casq:bits=2", "seconds": 0.05}, {"compressor": "auto", "spec": "plain"}  # which is there already
    on_hosts = row | {"ranks": 4, "ranks_a_host": 2, "spec": "casq:bits=2,reduce=gather", "elements": 131_072, "seconds": 0.04, "plain_seconds": 0.9}
    alone = row | {"spec": "casq:bits=2", "computes": False, "payload_bits_per_second": 1e15, "seconds": 0.001, "plain_seconds": 0.004, "bucket_elements": 100_000}
    path = write("scale.json", json.dumps({"command": "", "rows": [row, *(row | taken for taken in by_auto), on_hosts, alone]}))
    result = succeed_in_json("plan", "--measured", path)
    rows = result["rows"]
    assert result["cores"] is None and "each worker on cores of its own" in succeed("plan", "--measured", path)
    assert [(row["link"], row["path"], row["compressor"], row["measured_seconds"]) for row in rows] == [
        ("8mbit, 3", "SMPI", "plain", 0.57), ("8mbit, 3", "SMPI", "bf16", 0.28), ("8mbit, 3", "SMPI", "casq:bits=2", 0.05),
        ("8mbit, 2x2", "SMPI", "plain", 0.9), ("8mbit, 2x2", "SMPI", "casq:bits=2,reduce=gather", 0.04),
        ("8mbit, 3 *", "SMPI", "plain", 0.004), ("8mbit, 3 *", "SMPI", "casq:bits=2", 0.001)]  # fmt: skip
    alone = [row["predicted_seconds"] for row in rows[-2:]]
    assert alone == pytest.approx([0.004, 0.001], rel=1e-4)  # around a ring; and to all others. A codec takes no time
    rows = rows[:-2]
    assert "as if computation took no time" in succeed("plan", "--measured", path)
    wires = [bits / 8 * elements / (7.5e6 / 8) for bits, elements in ((32 * 4 / 3, 1e5), (16 * 4 / 3, 1e5), (4, 1e5), (48, 131_072), (2, 131_072))]
    assert [row["predicted_seconds"] for row in rows] == pytest.approx(wires, rel=0.1, abs=0.01)
    assert all(row["sending_seconds_per_byte"] == 0 for row in rows)


def test_predictions_beside_what_trainings_took(write):  # noqa: F811
    rows = {"plain": (1.5, None), "thinwire:bf16": (1.2, 2), "casq:bits=2,reduce=scatter": (1.1, 4)}
    left_out = dict.fromkeys(["bf16", "powersgd:rank=2", "s2+none", "auto", "local:every=3/none", "hosts:bf16", "fsdp/bf16"], (9.9, 1))
    network = {
        "link": "8mbit", "shaped": True, "payload_bits_per_second": 8e6, "ddp_step_seconds": 0.6, "sending_seconds_per_byte": 1e-9, "round_seconds": 0.001, "backend_round_seconds": 0.01,
        "parameters": [{"name": "a", "shape": [100, 1000]}, {"name": "b", "shape": [1000]}, {"name": "c", "shape": []}],
    }  # fmt: skip
    results = {
        "settings": {"workers": 4}, "network": network, "runs": [{"compressor": spec, "lanes": lanes} for spec, (_, lanes) in (rows | left_out).items()],
        "summary": [{"compressor": spec, "step_seconds": seconds} for spec, (seconds, _) in (rows | left_out).items()],
    }  # fmt: skip
    result = succeed_in_json("plan", "--measured", write("results.json", json.dumps(results)), "--cores", "8")
    assert [(row["path"], row["compressor"], row["elements"], row["measured_seconds"]) for row in result["rows"]] == [
        ("DDP", spec, 101_001, seconds) for spec, (seconds, _) in rows.items()]
    assert result["left_out"] == len(left_out) and {row["sending_seconds_per_byte"] for row in result["rows"]} == {1e-9}
    # One bucket, which is ready at the computation's end.
    wires = [1.5 * 4 * 101_001 / 1e6 / (1, 2, 16)[i] for i in range(3)]
    assert [row["predicted_seconds"] for row in result["rows"]] == pytest.approx([0.6 + wire for wire in wires], rel=0.05, abs=0.02)
    results["settings"]["per_host"] = 2
    shared = succeed_in_json("plan", "--measured", write("results.json", json.dumps(results)), "--cores", "8")
    assert [row["compressor"] for row in shared["rows"]] == ["plain", "hosts:bf16"]  # one level of workers that share a link is left out
    network["shaped"] = False
    assert succeed_in_json("plan", "--measured", write("results.json", json.dumps(results)))["left_out"] == len(rows | left_out)


def test_measured_files_that_are_none(write, tmp_path):  # noqa: F811
    for content in ("", "[]", "{}", '{"rows": []}', '{"rows": 3, "settings": {}}', '{"settings": {}, "rows": []}', '{"settings": {"workers": 4}, "runs": []}'):
        assert "is neither what bench.network writes" in fail(1, "plan", "--measured", write("other.json", content))
    assert "is neither what bench.network writes" in fail(1, "plan", "--measured", network_file(write, [{"path": "DDP"}]))
    assert "is neither what bench.network writes" in fail(1, "plan", "--measured", write("other.json", '{"settings": {"workers": "four"}, "rows": []}'))
    assert "missing.json" in fail(1, "plan", "--measured", tmp_path / "missing.json")
    assert "off by 0 %" in succeed("plan", "--measured", network_file(write, [])).lower()


def test_links_choose():
    """`reduce=auto` gathers where a round costs more than bytes, and scatters where it costs less."""
    spec = "casq:bits=2,reduce=auto"
    for latency, rounds in (("1s", 1), ("1us", 2)):
        for workers in ("4", "20"):
            _, rows = plan("--link", "1gbit", "--latency", latency, "--workers", workers, *SMALL, "--compressor", spec)
            assert rows[spec]["rounds"] == rounds


def test_many_workers_follow_from_few():
    specs = "bf16", "casq:bits=2,reduce=gather"
    arguments = "--link", "1gbit", *SMALL, *(word for spec in specs for word in ("--compressor", spec))
    few, many = plan(*arguments, "--workers", "8")[1], plan(*arguments, "--workers", "128")
    assert many[0]["measured"]["workers"] == [32, 64]
    assert many[1]["bf16"]["traffic_bytes"] == pytest.approx(few["bf16"]["traffic_bytes"] * (127 / 128) / (7 / 8))
    assert many[1][specs[1]]["traffic_bytes"] == pytest.approx(few[specs[1]]["traffic_bytes"] * 127 / 7)
    assert many[1][specs[1]]["pays"] == "never"


def test_for_people():
    text = succeed("plan", "--link", "100mbit", "--workers", "2", *SMALL)
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDEST_LINE
    assert lines[0] == "100,000 float32 in 1 bucket, 2 workers, 100 Mb/s, 0.2 ms a round"
    assert lines[2].split() == ["compressor", "bits", "wire", "ms", "codec", "ms", "step", "ms", "speedup", "pays", "below", "error"]
    assert {"none", "bf16", "powersgd:rank=4"} < {line.split()[0] for line in lines[4:13]}
    in_one_line = " ".join(text.split())
    assert "is the fastest here" in in_one_line and "What limits it" in in_one_line and "noise" in in_one_line
    assert "from which the rest follows" not in text
    assert "32 and 64 workers" in succeed("plan", "--link", "100mbit", "--workers", "65", *SMALL, "--compressor", "bf16")


def test_nothing_may_pay():
    text = succeed("plan", "--link", "1000gbit", "--latency", "1s", "--workers", "2", *SMALL, "--compressor", "casq:bits=2,reduce=scatter")
    assert "Nothing here is faster than none" in text and "The first to pay, on links below" in text


def test_none_and_doubles_are_measured_once():
    result, _ = plan("--link", "1gbit", *SMALL, "--compressor", "none", "--compressor", "bf16", "--compressor", "bf16")
    assert sorted(row["compressor"] for row in result["rows"]) == ["bf16", "none"]


@pytest.mark.parametrize("arguments, mentions", [
    ([], "--link"),
    (["--link", "fast"], "--link: 'fast' is not a rate"),
    (["--link", "0mbit"], "--link"),
    (["--link", "1gbit", "--latency", "200"], "--latency: '200' is not a time"),
    (["--link", "1gbit", "--workers", "1"], "--workers"),
    (["--link", "1gbit", "--workers", "1025"], "--workers"),
    (["--link", "1gbit", "--elements", "0"], "--elements"),
    (["--link", "1gbit", "--compute", "-1"], "--compute"),
    (["--link", "1gbit", "--hidden", "1.5"], "--hidden"),
    (["--link", "1gbit", "--sending", "fast"], "--sending: 'fast' is not a time"),
    (["--link", "1gbit", "--cores", "0"], "--cores"),
    (["--link", "1gbit", "--measured", "network.json"], "--measured"),
    (["--link", "1gbit", "--lanes", "0"], "--lanes"),
    (["--link", "1gbit", "--threads", "0"], "--threads"),
    (["--link", "1gbit", "--bucket-mb", "0"], "--bucket-mb"),
    (["--link", "1gbit", "--elements", "5", "--layout", "l.json"], "--elements"),
    (["--link", "1gbit", "--compressor", "casq:bits=9"], "bits"),
    (["--link", "1gbit", "--compressor", "zip"], "'zip'"),
])
def test_wrong_command_lines(arguments, mentions):
    assert mentions in fail(2, "plan", *arguments)


def test_layouts_that_cannot_be_used(write, tmp_path):  # noqa: F811
    assert "no elements" in fail(1, "plan", "--link", "1gbit", "--layout", write("empty.json", "[]"))
    assert "missing.json" in fail(1, "plan", "--link", "1gbit", "--layout", tmp_path / "missing.json")


def test_a_recorded_models_layout():
    layout = ROOT / "examples" / "gradients" / "cnn.json"
    result, rows = plan("--link", "100mbit", "--layout", layout, *FEW)
    assert result["elements"] == sum(int(np.prod(parameter["shape"])) for parameter in json.loads(layout.read_text()))
    assert rows["casq:bits=2,reduce=scatter"]["speedup"] > rows["bf16"]["speedup"] > 1.5


def test_page(tmp_path):
    page = tmp_path / "plan.html"
    text = succeed("plan", "--link", "1gbit", "--compute", "0.05", *SMALL, *FEW, "--html", page)
    found = page.read_text()
    assert found.count("<polyline") == 3 and found.count("<td>casq:bits=2,reduce=scatter</td>") == 1
    assert all(rate in found for rate in ("10 Mb/s", "100 Mb/s", "1 Gb/s", "10 Gb/s", "100 Gb/s"))
    assert " ".join(text.split("\n\n")[-2].split()).startswith(re.search("</h1><p>([^.]*)", found)[1])
    assert not re.search(r"(src|href)=|https?://|\bnan\b|\binf\b", found)


def test_steps_of_the_page_fall_as_links_get_faster(tmp_path):
    page = tmp_path / "plan.html"
    succeed("plan", "--link", "1gbit", *SMALL, *FEW, "--html", page)
    for points in re.findall("<polyline points='([^']*)'", page.read_text()):
        places = [tuple(map(float, point.split(","))) for point in points.split()]
        assert len(places) == 65
        assert places == sorted(places)  # to the right, and down
        assert all(later[1] >= earlier[1] for earlier, later in zip(places, places[1:]))


def test_a_page_that_cannot_be_written(tmp_path):
    assert "cannot be written" in fail(1, "plan", "--link", "1gbit", *SMALL, *FEW, "--html", tmp_path / "no" / "plan.html")
