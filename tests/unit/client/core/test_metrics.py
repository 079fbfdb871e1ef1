"""Metrics and statistics of clients, in a simulated world."""

import asyncio
import itertools
from typing import Any

import pytest

from ottla import AsyncAdmin
from ottla.client.prometheus import ClientCollector
from ottla.errors import ArgumentError, ConfigError, OttlaError
from ottla.testing.world import World


def test_metrics_count_what_a_client_has_done() -> None:
    async def story(world: World) -> None:
        producer = world.producer(client_id="p", max_request_size=100_000)
        for number in range(10):
            await producer.send_and_wait("t", f"{number}", partition=0)
        sent = await producer.metrics()
        assert (sent["record-send-total"], sent["batch-send-total"], sent["record-error-total"]) == (10, 10, 0)
        assert sent["buffer-available-bytes"] == sent["buffer-total-bytes"]
        assert isinstance(sent["request-total"], dict)
        assert sent["request-total"]["Produce"] == 10
        consumer = world.consumer(client_id="c", group_id="g", auto_offset_reset="earliest")
        await consumer.subscribe(["t"])
        while not await consumer.poll(1_000, max_records=4):
            pass
        await consumer.commit()
        read = await consumer.metrics()
        assert (read["records-consumed-total"], read["assigned-partitions"]) == (4, 1)
        assert (read["records-lag"], read["records-lag-max"]) == ({"t-0": 6}, 6)
        assert (read["rebalance-total"], read["commit-total"], read["commit-error-total"]) == (1, 1, 0)
        assert isinstance(read["bytes-consumed-total"], int)
        assert read["bytes-consumed-total"] > 0

        families = {family.name: family for family in ClientCollector(producer, consumer).collect()}
        (sample,) = families["ottla_client_record_send"].samples
        assert (sample.name, sample.labels, sample.value) == (
            "ottla_client_record_send_total",
            {"client_id": "p"},
            10,
        )
        (lag,) = families["ottla_client_records_lag"].samples
        assert (lag.labels, lag.value) == ({"client_id": "c", "partition": "t-0"}, 6)
        assert {s.labels["client_id"] for s in families["ottla_client_request"].samples} == {"p", "c"}
        await producer.close()
        await consumer.close()

    World(1).run(story)


def test_statistics_arrive_at_their_interval(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        seen: list[tuple[float, Any]] = []

        def take(metrics: Any) -> None:
            seen.append((world.loop.time(), metrics["record-send-total"]))
            if len(seen) == 2:
                raise ZeroDivisionError

        async with world.producer(on_statistics=take, statistics_interval_ms=10_000) as producer:
            await producer.send_and_wait("t", b"1", partition=0)
            await asyncio.sleep(35)
            await producer.send_and_wait("t", b"2", partition=0)
            await asyncio.sleep(10)
        assert [count for _, count in seen] == [1, 1, 1, 2]
        gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(seen)]
        assert all(9.9 <= gap <= 10.1 for gap in gaps), gaps
        assert "on_statistics failed" in caplog.text

    World(2).run(story)


def test_statistics_need_an_interval_and_a_function() -> None:
    async def story(world: World) -> None:
        with pytest.raises(ConfigError, match=r"on_statistics needs an interval.*statistics\.interval\.ms"):
            world.consumer(on_statistics=print)
        with pytest.raises(ArgumentError, match="on_statistics is not a function"):
            world.consumer(on_statistics="print", statistics_interval_ms=1_000)
        with pytest.raises(ConfigError, match="Pass on_statistics= to the client"):
            world.consumer(stats_cb=print)

    World(3).run(story)


def test_only_clients_with_metrics_can_be_collected() -> None:
    with pytest.raises(OttlaError, match="has no metrics"):
        ClientCollector(AsyncAdmin())
