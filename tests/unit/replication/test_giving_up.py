"""Partitions that a broker cannot store are handed over: together, again after a failure, but not in circles."""

import asyncio
import random
from collections.abc import Collection, Iterator

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.replication.giving_up import RETRY_AFTER_MS, GivenUp
from ottla.testing.sim_loop import SimLoop
from ottla.types import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Store:
    def __init__(self) -> None:
        self.calls: list[list[TopicPartition]] = []
        self.failures = 0

    async def give_up(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append(list(partitions))
        if self.failures:
            self.failures -= 1
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the store is away")


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop()
    yield loop
    loop.close()


def test_the_partitions_of_one_turn_are_handed_over_together(loop: SimLoop) -> None:
    store = Store()
    given_up = GivenUp(store.give_up, loop.monotonic)

    async def story() -> None:
        given_up.add(B)
        given_up.add(A)
        given_up.add(A)
        await asyncio.sleep(1)

    loop.run_until_complete(story())
    assert store.calls == [[A, B]]


def test_a_failed_hand_over_is_tried_again(loop: SimLoop) -> None:
    store = Store()
    store.failures = 2
    given_up = GivenUp(store.give_up, loop.monotonic, rng=random.Random(1))

    async def story() -> None:
        given_up.add(A)
        await asyncio.sleep(5)

    loop.run_until_complete(story())
    assert store.calls == [[A], [A], [A]]


def test_a_partition_is_not_given_up_again_and_again(loop: SimLoop) -> None:
    """Every write that fails asks for it."""
    store = Store()
    given_up = GivenUp(store.give_up, loop.monotonic)

    async def story() -> None:
        for _ in range(3):
            given_up.add(A)
            await asyncio.sleep(1)
        assert store.calls == [[A]]
        await asyncio.sleep(RETRY_AFTER_MS / 1000)
        given_up.add(A)
        await asyncio.sleep(1)

    loop.run_until_complete(story())
    assert store.calls == [[A], [A]]


def test_nothing_is_given_up_after_the_stop(loop: SimLoop) -> None:
    store = Store()
    given_up = GivenUp(store.give_up, loop.monotonic)

    async def story() -> None:
        given_up.stop()
        given_up.add(A)
        await asyncio.sleep(1)

    loop.run_until_complete(story())
    assert store.calls == []
