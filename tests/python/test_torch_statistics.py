"""stats() and the table for people."""

import pytest
import thinwire.torch
import torch.distributed as dist
from small_models import backward, batch, ddp
from thinwire.torch import statistics
from worker_pool import pool

KEYS = {
    "steps", "reductions", "rounds", "setup_bytes", "payload_bytes", "second_bytes", "traffic_bytes", "plain_bytes", "within_host_bytes", "ratio",
    "compressed_share", "compression_error", "row_bytes", "fallbacks", "non_finite", "failed_steps", "seconds",
}  # fmt: skip


def check_stats(spec, measure_every):
    model = ddp()
    with thinwire.torch.attach(model, spec, measure_every=measure_every) as attachment:
        assert attachment.stats()["ratio"] is None and attachment.stats()["compression_error"] is None
        for step in range(4):
            backward(model, batch(step, dist.get_rank()))
        return attachment.stats(), str(attachment), sum(parameter.numel() for parameter in model.parameters())


def test_plain_traffic_is_what_ring_all_reduce_sends():
    stats, text, elements = pool(2).run(check_stats, "none", 0)[0]
    assert set(stats) == KEYS and set(stats["seconds"]) == {"setup", "encode", "wire", "decode"}
    assert stats["steps"] == 4 and stats["reductions"] > 8
    assert stats["plain_bytes"] == 4 * elements * 4  # two workers send as much as there is
    assert stats["traffic_bytes"] == pytest.approx(stats["plain_bytes"], rel=0.02) and stats["ratio"] == pytest.approx(1, rel=0.02)
    assert stats["compressed_share"] == 0 and stats["compression_error"] is None and stats["non_finite"] == 0
    assert stats["payload_bytes"] >= 4 * elements * 4 and stats["seconds"]["wire"] > 0
    assert text.startswith("thinwire on 12 parameters: none\n") and "ratio" in text


def test_compression_shows_in_the_figures():
    stats, text, _ = pool(2).run(check_stats, "casq:bits=2", 1)[0]
    assert 0.9 < stats["compressed_share"] < 1 and 0.01 < stats["compression_error"] < 0.5
    assert stats["setup_bytes"] > 0 and stats["ratio"] > 1
    assert all(seconds > 0 for seconds in stats["seconds"].values())
    assert "of the energy" in text


def test_one_worker_sends_nothing():
    stats, text, _ = pool(1).run(check_stats, "casq:bits=2", 0)[0]
    assert stats["traffic_bytes"] == 0 and stats["ratio"] is None
    assert "ratio      -" in text


def test_the_table_is_for_people():
    stats = {key: 0 for key in KEYS} | {"traffic_bytes": 2.5e6, "plain_bytes": 4e7, "ratio": 16.0, "compressed_share": None}
    text = statistics.table("title", stats | {"seconds": {"wire": 1.5}})
    assert text.splitlines()[0] == "title" and "2.5 MB, plain all-reduce 40 MB" in text and "wire 1.5 s" in text


class Writer:
    """What torch.utils.tensorboard.SummaryWriter does, of which tests need not have the package."""

    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, scalar_value, global_step):
        assert isinstance(scalar_value, (int, float))
        self.scalars.append((tag, scalar_value, global_step))


def check_scalars():
    model = ddp()
    with thinwire.torch.attach(model, "casq:bits=2") as attachment:
        writer = Writer()
        attachment.write_scalars(writer)
        tags = [tag for tag, _, _ in writer.scalars]
        assert "thinwire/traffic_bytes" in tags and "thinwire/ratio" not in tags  # which nobody knows yet
        for step in range(3):
            backward(model, batch(step, dist.get_rank()))
        writer, stats = Writer(), attachment.stats()
        attachment.write_scalars(writer)
        assert ("thinwire/ratio", stats["ratio"], 3) in writer.scalars
        assert ("thinwire/seconds/encode", stats["seconds"]["encode"], 3) in writer.scalars
        assert {tag.split("/")[1] for tag, _, _ in writer.scalars} == KEYS
        attachment.write_scalars(writer, 500, prefix="exchange")
        assert ("exchange/steps", 3, 500) in writer.scalars


def test_scalars_go_to_tensorboard_by_one_line():
    pool(2).run(check_scalars)
