"""Consumers that read from a replica in their own rack (KIP-392)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ottla.broker.settings.config import BrokerConfig
from ottla.config import parse
from ottla.errors import ConfigError, ErrorCode
from ottla.protocol.records.record_batch import control_batch, stamp
from ottla.replication.config import ReplicaConfig
from tests.support.worlds.data_world import DataWorld, batch_of, fetch_request, only_partition, values_in

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def make(path: Any, selector: str | None = SELECTOR) -> DataWorld:
    """Brokers 0, 1 and 2 are in racks a, b and c; broker 0 runs."""
    world = DataWorld(str(path), broker_config=BrokerConfig(replica_selector_class=selector))
    brokers = {i: broker._replace(rack="abc"[i]) for i, broker in world.image.brokers.items()}
    world.publish(replace(world.image, brokers=brokers))
    return world


@pytest.fixture
def world(tmp_path: Any) -> Iterator[DataWorld]:
    world = make(tmp_path)
    yield world
    world.close()


def leads(world: DataWorld, isr: tuple[int, ...] = (0, 1, 2)) -> None:
    world.topic("orders", replicas=(0, 1, 2), isr=isr)
    world.append("orders", "x")
    for broker_id in (1, 2):
        world.replicas.follower_fetched(world.replica("orders"), broker_id, 1, 0)


def fetch(world: DataWorld, offset: int = 0, *, rack: str = "", version: int = 12, **details: Any) -> Any:
    request = fetch_request(
        {("orders", 0): offset}, rack_id=rack, session_id=0, session_epoch=-1, **{"max_wait_ms": 0} | details
    )
    return only_partition(world.ask(request, version))


# -- where the leader sends a consumer --


def test_a_consumer_is_sent_to_the_replica_in_its_rack(world: DataWorld) -> None:
    leads(world)
    data = fetch(world, rack="c")
    assert (data.preferred_read_replica, data.records) == (2, b"")


@pytest.mark.parametrize("rack", ["a", "elsewhere", ""])
def test_a_consumer_reads_from_the_leader_if_no_follower_is_nearer(world: DataWorld, rack: str) -> None:
    leads(world)
    data = fetch(world, rack=rack)
    assert (data.preferred_read_replica, values_in(data)) == (-1, ["x"])


def test_a_waiting_consumer_is_sent_away_at_once(world: DataWorld) -> None:
    leads(world)
    assert fetch(world, 1, rack="c", max_wait_ms=60_000).preferred_read_replica == 2
    assert world.loop.time() < 1


def test_a_replica_that_is_out_of_sync_is_not_preferred(world: DataWorld) -> None:
    leads(world, isr=(0, 1))
    assert fetch(world, rack="c").preferred_read_replica == -1


def test_a_replica_without_the_offset_is_not_preferred(world: DataWorld) -> None:
    leads(world)
    world.append("orders", "y")
    assert fetch(world, 2, rack="c").preferred_read_replica == -1


def test_a_replica_that_leaves_is_not_preferred(world: DataWorld) -> None:
    leads(world)
    brokers = dict(world.image.brokers) | {2: world.image.brokers[2]._replace(is_leaving=True)}
    world.publish(replace(world.image, brokers=brokers))
    assert fetch(world, rack="c").preferred_read_replica == -1


def test_without_a_selector_the_leader_is_preferred(tmp_path: Any) -> None:
    world = make(tmp_path, None)
    leads(world)
    assert fetch(world, rack="c").preferred_read_replica == -1
    world.close()


def test_the_selector_is_known_by_its_class_or_its_name() -> None:
    for name in (SELECTOR, "RackAwareReplicaSelector", "LeaderSelector"):
        assert parse(ReplicaConfig, {"replica.selector.class": name}).replica_selector_class == name
    with pytest.raises(ConfigError, match="RackAwareReplicaSelector"):
        parse(ReplicaConfig, {"replica.selector.class": "com.example.Mine"})


# -- what a follower answers --


def follows(world: DataWorld) -> None:
    world.topic("orders", replicas=(1, 0), leader_epoch=3)


def replicate(world: DataWorld, batch: bytes) -> None:
    """Appends as if the leader had sent it."""
    log = world.log("orders")
    copy = bytearray(batch)
    stamp(copy, log.log_end_offset, 3)
    log.append_replicated(copy)


def test_a_follower_answers_up_to_its_high_watermark(world: DataWorld) -> None:
    follows(world)
    replicate(world, batch_of("a"))
    replicate(world, batch_of("b"))
    world.log("orders").advance_high_watermark(1)
    assert values_in(fetch(world)) == ["a"]
    above = fetch(world, 1)
    assert (above.error_code, above.records, above.high_watermark) == (0, b"", 1)
    assert fetch(world, version=10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "before KIP-392"


def test_a_follower_checks_the_consumers_leader_epoch(world: DataWorld) -> None:
    follows(world)
    for epoch, code in ((2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH), (3, ErrorCode.NONE)):
        assert fetch(world, partition={"current_leader_epoch": epoch}).error_code == code


def test_a_follower_knows_open_and_aborted_transactions(world: DataWorld) -> None:
    """It rebuilds them from the batches that it copies."""
    follows(world)
    replicate(world, batch_of("aborted", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    replicate(world, batch_of("plain"))
    world.log("orders").advance_high_watermark(2)
    assert fetch(world, isolation_level=1).records == b"", "the transaction is still open"
    replicate(world, control_batch(commit=False, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=0))
    world.log("orders").advance_high_watermark(3)
    data = fetch(world, isolation_level=1)
    assert [(t.producer_id, t.first_offset) for t in data.aborted_transactions] == [(7, 0)]
    assert data.last_stable_offset == 3


def test_a_consumer_that_waits_at_a_follower_is_answered_when_the_watermark_moves(world: DataWorld) -> None:
    follows(world)
    replicate(world, batch_of("a"))
    request = fetch_request({("orders", 0): 0}, max_wait_ms=60_000, session_id=0, session_epoch=-1)
    asked = world.asks(request, 12)
    assert not asked.is_answered
    log = world.log("orders")
    log.advance_high_watermark(1)
    world.replicas.announce(world.replica("orders"), 0)
    assert values_in(only_partition(asked.answer())) == ["a"]


def test_a_follower_does_not_take_writes(world: DataWorld) -> None:
    follows(world)
    assert world.produce("orders", "a").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
