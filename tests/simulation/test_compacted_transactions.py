"""Compacted topics with transactions, read through a broker in simulated time."""

import asyncio

from ottla.testing.world import World
from tests.support.seeds import each_seed

HALF_A_MINUTE_S = 30
"""Longer than log.cleaner.backoff.ms and delete.retention.ms."""


@each_seed(1)
def test_a_deleted_key_does_not_reappear_after_an_earlier_abort(seed: int) -> None:
    """A tombstone of a producer that aborted before the last compaction still removes the older value."""
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "segment.ms": "100",
        "delete.retention.ms": "1000",
    }

    async def story(world: World) -> None:
        async with world.admin() as admin:
            await admin.create_topic("t", partitions=1, configs=configs)
        async with world.producer(transactional_id="x") as producer:

            async def transaction(key: bytes, value: bytes | None, *, abort: bool = False) -> None:
                await producer.begin_transaction()
                await producer.send_and_wait("t", value, key=key)
                await (producer.abort_transaction() if abort else producer.commit_transaction())

            async def roll_and_compact() -> None:
                """The first append after segment.ms starts a segment; its records are not compacted."""
                await asyncio.sleep(1)
                await transaction(b"roll", b"x")
                await asyncio.sleep(HALF_A_MINUTE_S)

            await producer.init_transactions()
            await transaction(b"k", b"value")
            await transaction(b"other", b"x", abort=True)
            await roll_and_compact()
            assert await committed(world) == {b"k": b"value", b"roll": b"x"}
            await transaction(b"k", None)
            await roll_and_compact()
            assert (await committed(world)).get(b"k") is None
            await roll_and_compact()
            assert await committed(world) == {b"roll": b"x"}, "the tombstone is gone, and so is the value"

    World(seed, offsets_topic_num_partitions="1", transaction_state_log_num_partitions="1").run(story)


async def committed(world: World) -> dict[bytes, bytes | None]:
    """The last value of each key for a read_committed consumer that starts at the beginning."""
    found: dict[bytes, bytes | None] = {}
    async with world.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        end = next(iter((await consumer.end_offsets([("t", 0)])).values()))
        await consumer.assign([("t", 0)])
        await consumer.seek_to_beginning([("t", 0)])
        for _ in range(1000):
            if await consumer.position(("t", 0)) >= end:
                return found
            for record in await consumer.poll(1000):
                assert record.key is not None
                found[record.key] = record.value
    raise AssertionError(f"the consumer did not reach offset {end}")
