"""The pages for operators: /healthz, /readyz, /safe-to-stop."""

import asyncio
import json
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.broker import Broker
from ottla.broker.monitoring import health
from ottla.broker.monitoring.health import SERVING, STUCK_MS, Health, losses
from ottla.broker.settings.config import load_config
from ottla.clock import MonotonicMs
from ottla.coordinator.hosted import HostedShard, ShardState
from ottla.log.log_directory import LogDirectory
from ottla.metadata.image import BrokerRegistration, ClusterImage, PartitionImage, TopicImage

ME = 1


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


class Pages:
    """A broker with its HTTP endpoint."""

    def __init__(self, data: Path, **settings: str) -> None:
        values = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(data), "ottla.metrics.listen": "127.0.0.1:0"}
        self.broker = Broker(load_config(values | settings))

    async def get(self, path: str) -> tuple[int, Any]:
        assert self.broker.http is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.broker.http.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        is_json = b"application/json" in head
        return int(head.split()[1]), json.loads(body) if is_json else body.decode()


def test_a_broker_that_loads_its_logs_is_alive_but_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_load = threading.Event()
    load = LogDirectory.load

    def slow_load(directory: LogDirectory, config_of: Any) -> None:
        assert may_load.wait(60)
        load(directory, config_of)

    monkeypatch.setattr(LogDirectory, "load", slow_load)

    async def story() -> None:
        pages = Pages(tmp_path)
        starting = asyncio.create_task(pages.broker.start())
        while pages.broker.health.phase != "loading its logs":  # noqa: ASYNC110 - it cannot notify
            await asyncio.sleep(0)
        assert (await pages.get("/healthz"))[0] == 200
        status, answer = await pages.get("/readyz")
        assert (status, answer["reasons"]) == (503, ["the broker is loading its logs"])
        assert (await pages.get("/safe-to-stop"))[0] == 503
        may_load.set()
        await starting
        try:
            assert await pages.get("/readyz") == (200, {"ok": True, "broker": 0, "phase": SERVING, "reasons": []})
            assert (await pages.get("/safe-to-stop"))[0] == 200
            assert (await pages.get("/readyz?verbose"))[0] == 200
            status, text = await pages.get("/nonsense")
            assert (status, "/healthz, /metrics, /readyz, /safe-to-stop" in text) == (404, True)
        finally:
            await pages.broker.stop()

    run(story())


def test_health_needs_no_prometheus_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    async def story() -> None:
        pages = Pages(tmp_path)
        await pages.broker.start()
        try:
            assert (await pages.get("/readyz"))[0] == 200
            status, text = await pages.get("/metrics")
            assert (status, "pip install 'ottla[metrics]'" in text) == (501, True)
        finally:
            await pages.broker.stop()

    run(story())


def test_a_page_that_fails_is_an_error_and_the_next_one_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        pages = Pages(tmp_path)
        await pages.broker.start()
        try:
            monkeypatch.setattr(health, "losses", lambda services, broker_id: 1 / 0)
            assert (await pages.get("/safe-to-stop"))[0] == 500
            assert (await pages.get("/readyz"))[0] == 200
        finally:
            await pages.broker.stop()

    run(story())


# The decisions, without a broker


def services(
    *partitions: tuple[tuple[int, ...], tuple[int, ...]],
    minimum: int = 2,
    alive: tuple[int, ...] = (0, 1, 2),
    leaving: tuple[int, ...] = (),
    shards: tuple[HostedShard[Any], ...] = (),
    is_confirmed: bool = True,
    epoch: int = 7,
) -> Any:
    """A cluster with one topic: each partition has these replicas and this in-sync set."""
    found = tuple(PartitionImage(n, isr[0], 1, 1, replicas, isr) for n, (replicas, isr) in enumerate(partitions))
    brokers = {each: BrokerRegistration(each, epoch, {}, None, each in leaving) for each in alive}
    image = ClusterImage(brokers=brokers, topics={"orders": TopicImage("orders", b"i" * 16, found, {})})
    runtime = SimpleNamespace(hosted_shards=lambda: iter(shards))
    return SimpleNamespace(
        image=image,
        settings=SimpleNamespace(min_insync_replicas=lambda image, topic: minimum),
        metadata=SimpleNamespace(is_session_confirmed=is_confirmed, broker_epoch=7),
        coordinators=SimpleNamespace(runtimes=lambda: [runtime]),
    )


@pytest.mark.parametrize(
    ("replicas", "isr", "minimum", "is_safe"),
    [
        ((0, 1, 2), (0, 1, 2), 2, True),
        ((0, 1, 2), (0, 1), 2, False),  # one would remain, and two are needed for writes
        ((0, 1, 2), (0, 2), 2, True),  # this broker is not in sync itself: nothing is lost
        ((0, 1, 2), (0, 1), 1, True),
        ((0, 1, 2), (1,), 1, False),  # nobody could lead
        ((0, 1, 2), (0, 1, 2), 3, True),  # never protected: waiting would take forever
        ((1,), (1,), 1, True),  # the same
        ((0, 1), (1,), 2, False),  # another replica may be back soon
        ((0, 2), (0,), 2, True),  # not a replica of this broker
    ],
)
def test_a_stop_is_safe_if_enough_other_replicas_are_in_sync(
    replicas: tuple[int, ...], isr: tuple[int, ...], minimum: int, is_safe: bool
) -> None:
    waiting, _ = losses(services((replicas, isr), minimum=minimum), ME)
    assert (not waiting) == is_safe


def test_members_of_the_in_sync_set_that_are_gone_or_leaving_do_not_count() -> None:
    whole = ((0, 1, 2), (0, 1, 2))
    assert losses(services(whole, alive=(1, 2)), ME)[0] == ["orders-0"]
    assert losses(services(whole, leaving=(0,)), ME)[0] == ["orders-0"]


def test_partitions_that_no_waiting_can_protect_are_counted() -> None:
    _, unprotected = losses(services(((1,), (1,)), ((0, 1, 2), (0, 1, 2))), ME)
    assert unprotected == ["orders-0"]


def asked(given: Any) -> Health:
    asked = Health(ME, lambda: MonotonicMs(0))
    asked.phase, asked.services = SERVING, given
    return asked


def test_a_broker_without_a_session_or_registration_is_not_ready() -> None:
    assert not list(asked(services()).reasons_not_ready())
    (reason,) = asked(services(is_confirmed=False)).reasons_not_ready()
    assert "session" in reason
    (reason,) = asked(services(alive=(0, 2))).reasons_not_ready()
    assert "not registered" in reason
    (reason,) = asked(services(epoch=8)).reasons_not_ready()  # somebody else uses this id
    assert "not registered" in reason


def shard(state: ShardState) -> HostedShard[Any]:
    hosted: HostedShard[Any] = HostedShard("__consumer_offsets", 3, 1, b"", None)
    hosted.move(ShardState.LOADING)
    if state is ShardState.FAILED:
        hosted.fail("a record is damaged")
    return hosted


def test_a_coordinator_partition_that_cannot_be_loaded_is_named() -> None:
    (reason,) = asked(services(shards=(shard(ShardState.FAILED),))).reasons_not_ready()
    assert reason == "__consumer_offsets-3 cannot be loaded: a record is damaged"


def test_loading_is_normal_until_it_takes_too_long() -> None:
    now = 0
    broker = Health(ME, lambda: MonotonicMs(now))
    broker.phase, broker.services = SERVING, services(shards=(shard(ShardState.LOADING),))
    assert not list(broker.reasons_not_ready())
    now = STUCK_MS + 1_000
    (reason,) = broker.reasons_not_ready()
    assert reason == "__consumer_offsets-3 has been loading for 61 s"


def test_the_answer_about_stopping_is_computed_once_per_image(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = asked(services(((0, 1, 2), (0, 1))))
    page = broker.safe_to_stop()
    assert json.loads(page.body)["waits_for"] == ["orders-0"]
    monkeypatch.setattr(health, "losses", lambda services, broker_id: pytest.fail("computed again"))
    assert broker.safe_to_stop() == page
