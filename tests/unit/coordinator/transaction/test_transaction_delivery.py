"""A decided transaction completes despite disk failures, slow syncs and failovers: markers and runtime
on real logs, in a simulated world. Spec: E6."""

import asyncio
from typing import Any

import pytest

from ottla.coordinator.transaction.shard import SendMarkers
from ottla.errors import ErrorCode, KafkaError
from ottla.types import TopicPartition
from tests.support.processes.copier import settle
from tests.support.wire.transactional import NEW, OLD, Protocol
from tests.support.worlds.transaction_stage import Stage, run_story

PROTOCOLS = pytest.mark.parametrize("protocol", [OLD, NEW], ids=["old", "new"])


@PROTOCOLS
def test_a_decision_that_is_slow_to_sync_is_carried_out_afterwards(protocol: Protocol) -> None:
    """The producer must retry, but the markers are written without another request."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(protocol)
        await producer.send("t", 0, [b"v"])
        # From here on every sync takes longer than the append timeout.
        stage.world.loop.executor_delay_ms = (8_000.0, 9_000.0)
        answer = await stage.client.ask_once(producer.end_request(commit=True), protocol.end)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        stage.world.loop.executor_delay_ms = (0.0, 2.0)
        await asyncio.sleep(60)
        await settle(stage.client, "t", 0)
        assert await stage.values() == [b"v"]
        await producer.commit()
        await producer.send("t", 0, [b"w"])
        await producer.commit()
        await settle(stage.client, "t", 0)
        assert await stage.values() == [b"v", b"w"]

    run_story(story, ottla_flush_before_ack="true")


def test_an_update_raises_if_its_records_cannot_be_appended() -> None:
    async def story(stage: Stage) -> None:
        producer = await stage.producer()
        await producer.send("t", 0, [b"v"])
        runtime = stage.world.broker.services.transactions  # type: ignore[union-attr]
        stage.world.platter.fail_next("append")

        def decide(shard: Any, now: int) -> Any:
            return shard.end("x", producer.producer_id, producer.producer_epoch, True, -1, 0, now, bumps_epoch=True)

        with pytest.raises(KafkaError):
            runtime.update("x", decide)
        assert await stage.state() == "Ongoing"
        await producer.commit()

    run_story(story)


@PROTOCOLS
def test_a_marker_of_an_earlier_transaction_is_not_written_into_the_next(protocol: Protocol) -> None:
    """A late retry finds its transaction over. With the old protocol nothing else would stop it."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(protocol)
        await producer.send("t", 0, [b"first"])
        epoch = producer.producer_epoch
        await producer.commit()
        await stage.until_state("CompleteCommit")
        await producer.send("t", 0, [b"second"])
        coordinators = stage.world.broker.services.coordinators  # type: ignore[union-attr]
        late = SendMarkers(
            "x",
            producer.producer_id,
            epoch if protocol is OLD else epoch + 1,
            True,
            frozenset([TopicPartition("t", 0)]),
            0 if protocol is OLD else 2,
        )
        assert coordinators is not None
        assert coordinators.marker_delivery is not None
        coordinators.marker_delivery.send(late)
        await asyncio.sleep(1)
        assert await stage.values() == [b"first"]
        await producer.abort()
        await settle(stage.client, "t", 0)
        assert await stage.values() == [b"first"]

    run_story(story)
