"""A fresh load of the log gives the state of the live shard, and the check that all tests end with notices if not.

Spec: B10, E6
"""

import pytest

from ottla.coordinator.group.records import offset_key
from ottla.coordinator.transaction.transaction import transaction_key
from tests.support import fresh_load
from tests.support.worlds.coordinator_world import CoordinatorWorld
from tests.support.worlds.group_world import GroupWorld
from tests.support.worlds.transaction_world import TransactionWorld


def busy_group() -> GroupWorld:
    world = GroupWorld()
    ids = world.settle("ann", "bob")
    world.commit(5, member_id=ids["ann"], generation=world.generation())
    world.commit_in_transaction(6, partition=1, producer_id=7)
    return world


def test_a_stable_group_and_its_offsets_are_hard_state() -> None:
    world = busy_group()
    assert set(world.shard.hard_state()) == {"group g", "offset g orders-0", "pending 7 g orders-1"}
    assert world.fresh_load().hard_state() == world.shard.hard_state()


def test_a_rebalancing_group_is_compared_once_it_is_stable() -> None:
    world = busy_group()
    world.enter("cid")
    assert "group g" not in world.shard.hard_state()
    assert "group g" in world.fresh_load().hard_state()
    fresh_load.check_world(world)


def test_a_simple_group_is_its_offsets() -> None:
    """Compaction may remove the last trace of a group that has neither members nor offsets."""
    world = GroupWorld()
    world.commit(5)
    assert set(world.shard.hard_state()) == {"offset g orders-0"}


def test_an_offset_that_the_log_does_not_hold_is_noticed() -> None:
    with fresh_load.unwatched():
        world = GroupWorld()
    world.commit(5)
    world.shard.replay(1, offset_key("g", "orders", 0), None, world.now)
    with pytest.raises(AssertionError, match="offset g orders-0: live 'nothing', fresh load b"):
        fresh_load.check_world(world)


def test_a_group_that_the_log_does_not_hold_is_noticed() -> None:
    with fresh_load.unwatched():
        world = GroupWorld()
    world.settle("ann")
    world.shard.groups["g"].generation += 1
    with pytest.raises(AssertionError, match="group g: live"):
        fresh_load.check_world(world)


def test_a_transaction_that_the_log_does_not_hold_is_noticed() -> None:
    with fresh_load.unwatched():
        world = TransactionWorld()
    world.init()
    fresh_load.check_world(world)
    world.shard.replay(1, transaction_key("x"), None, world.now)
    with pytest.raises(AssertionError, match="transaction x: live 'nothing'"):
        fresh_load.check_world(world)


def test_the_coordinators_of_a_broker_are_checked_when_they_stop(tmp_path: object) -> None:
    world = CoordinatorWorld(str(tmp_path))
    world.topic("orders", partitions=3)
    world.offsets_topic()
    world.shard().replay(0, offset_key("g", "orders", 0), b"\0\4" + bytes(30), 0)
    try:
        with pytest.raises(AssertionError, match=r"__consumer_offsets-0: offset g orders-0"), fresh_load.watched():
            world.stop()
    finally:
        world.close()
