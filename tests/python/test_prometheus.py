"""thinwire.prometheus: what a scrape finds."""

import gc

import prometheus_client
import pytest
import thinwire.prometheus
import thinwire.torch
import torch.distributed as dist
from prometheus_client.parser import text_string_to_metric_families
from small_models import backward, batch, ddp
from worker_pool import pool


def scraped(registry):
    text = prometheus_client.generate_latest(registry).decode()
    return {(sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}  # fmt: skip


def check_export():
    registry, rank = prometheus_client.CollectorRegistry(), ("rank", str(dist.get_rank()))
    model, other = ddp(), ddp()
    with thinwire.torch.attach(model, "casq:bits=2", measure_every=1) as attachment:
        thinwire.prometheus.export(attachment, registry=registry)
        before = scraped(registry)
        assert before["thinwire_steps_total", rank] == 0 and ("thinwire_ratio", rank) not in before  # which nobody knows yet
        for step in range(3):
            backward(model, batch(step, dist.get_rank()))
        found, stats = scraped(registry), attachment.stats()
        for name in ("ratio", "compression_error"):
            assert found[f"thinwire_{name}", rank] == stats[name] > 0
        for name in ("steps", "traffic_bytes", "non_finite"):
            assert found[f"thinwire_{name}_total", rank] == stats[name]
        assert found["thinwire_seconds_total", ("phase", "encode"), rank] == stats["seconds"]["encode"] > 0

        thinwire.prometheus.export(attachment, registry=registry, job="a")  # instead of without a label
        assert ("thinwire_steps_total", ("job", "a"), rank) in scraped(registry)
        assert ("thinwire_steps_total", rank) not in scraped(registry)
        second = thinwire.torch.attach(other, "bf16")
        with pytest.raises(thinwire.ArgumentError, match="another label"):
            thinwire.prometheus.export(second, registry=registry, job="a")
        for wrong in ({"rank": "3"}, {"phase": "x"}, {"job": 1}):
            with pytest.raises(thinwire.ArgumentError, match="not allowed"):
                thinwire.prometheus.export(second, registry=registry, **wrong)
        thinwire.prometheus.export(second, registry=registry, job="b")
        assert {key[1][1] for key in scraped(registry) if key[0] == "thinwire_steps_total"} == {"a", "b"}
        second.close()
        del second, other
        gc.collect()
        assert {key[1][1] for key in scraped(registry) if key[0] == "thinwire_steps_total"} == {"a"}


def test_a_scrape_finds_what_stats_knows():
    pool(2).run(check_export)


def check_local_steps():
    import torch

    registry, model = prometheus_client.CollectorRegistry(), torch.nn.Linear(20, 30)
    local = thinwire.torch.LocalSteps(model, torch.optim.SGD(model.parameters(), lr=0.1), every=2, compressor="casq:bits=4")
    thinwire.prometheus.export(local, registry=registry, model="linear")
    assert scraped(registry)["thinwire_outer_steps_total", ("model", "linear"), ("rank", str(dist.get_rank()))] == 0
    local.close()


def test_local_steps_too():
    pool(2).run(check_local_steps)
