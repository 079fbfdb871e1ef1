"""Timeouts of calls: milliseconds or a timedelta, never a bare number of seconds."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from ottla import AsyncAdmin, AsyncConsumer, AsyncDeserializingConsumer, AsyncProducer, Consumer, DeserializingConsumer
from ottla.client.admin.transaction_model import PreparedTransaction
from ottla.client.core.arguments import as_poll_timeout_ms, as_timeout_ms
from ottla.errors import ArgumentError, KafkaError
from ottla.testing.world import World

PREPARED = PreparedTransaction("x", 1, 1)


def test_a_timedelta_means_what_it_says() -> None:
    assert as_timeout_ms(timedelta(seconds=1.5)) == 1_500
    assert as_timeout_ms(timedelta(microseconds=1)) == 1, "not zero, which would not wait at all"
    assert as_timeout_ms(timedelta(0)) == as_timeout_ms(0) == 0


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (1.0, r"not 1\.0\. For 1\.0 seconds write 1000 or timedelta\(seconds=1\.0\)"),
        (0.25, r"not 0\.25\. For 0\.25 seconds write 250 or"),
        (1000.0, r"not 1000\.0\. For 1000\.0 seconds write 1000000"),
        (-1, r"at least 0, not -1\. 0 does not wait\."),
        (timedelta(seconds=-1), r"at least 0, not -1 day"),
        (True, "not True"),
        (None, "not None"),
        ("1000", "not '1000'"),
        (float("inf"), "not inf"),
        (float("nan"), "not nan"),
    ],
)
def test_anything_else_is_rejected_with_a_hint(written: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        as_timeout_ms(written)


def test_a_poll_that_looks_like_seconds_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert as_poll_timeout_ms(7) == 7
    assert caplog.text.count("poll(7) waits 7 ms; for seconds write 7000") == 1
    caplog.clear()
    assert [as_poll_timeout_ms(ms) for ms in (0, 10, timedelta(milliseconds=5))] == [0, 10, 5]
    assert not caplog.text


CALLS: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
    "AsyncConsumer.poll": lambda c, ms: c.poll(ms),
    "AsyncConsumer.poll_arrow": lambda c, ms: c.poll_arrow(ms),
    "AsyncConsumer.iter_arrow": lambda c, ms: anext(c.iter_arrow(timeout_ms=ms)),
    "AsyncConsumer.close": lambda c, ms: c.close(ms),
    "AsyncConsumer.partitions_for": lambda c, ms: c.partitions_for("t", ms),
    "AsyncConsumer.position": lambda c, ms: c.position(("t", 0), ms),
    "AsyncConsumer.commit": lambda c, ms: c.commit({("t", 0): 1}, ms),
    "AsyncConsumer.committed": lambda c, ms: c.committed([("t", 0)], ms),
    "AsyncDeserializingConsumer.poll": lambda c, ms: c.poll(ms),
    "AsyncProducer.init_transactions": lambda p, ms: p.init_transactions(timeout_ms=ms),
    "AsyncProducer.send_offsets_to_transaction": lambda p, ms: p.send_offsets_to_transaction({}, "g", timeout_ms=ms),
    "AsyncProducer.commit_transaction": lambda p, ms: p.commit_transaction(timeout_ms=ms),
    "AsyncProducer.abort_transaction": lambda p, ms: p.abort_transaction(timeout_ms=ms),
    "AsyncProducer.prepare_transaction": lambda p, ms: p.prepare_transaction(timeout_ms=ms),
    "AsyncProducer.flush": lambda p, ms: p.flush(ms),
    "AsyncProducer.close": lambda p, ms: p.close(ms),
    "AsyncAdmin.commit_prepared": lambda a, ms: a.commit_prepared(PREPARED, timeout_ms=ms),
    "AsyncAdmin.abort_prepared": lambda a, ms: a.abort_prepared(PREPARED, timeout_ms=ms),
}


def test_every_public_timeout_is_in_the_list_below() -> None:
    found = {
        f"{kind.__name__}.{name}"
        for kind in (AsyncConsumer, AsyncDeserializingConsumer, AsyncProducer, AsyncAdmin)
        for name, method in vars(kind).items()
        if not name.startswith("_") and callable(method) and "timeout_ms" in inspect.signature(method).parameters
    }
    assert found == CALLS.keys()


@pytest.mark.parametrize("call", CALLS)
def test_no_call_takes_a_float_and_nothing_happens_then(call: str) -> None:
    """The argument is checked first: a commit with a wrong timeout must not commit."""

    async def story(world: World) -> None:
        admin = world.admin()
        await admin.create_topic("t", partitions=1)
        kind = call.partition(".")[0]
        client: Any
        if kind == "AsyncProducer":
            client = world.producer(transactional_id="x")
            if not call.endswith("init_transactions"):
                await client.init_transactions()
                await client.begin_transaction()
        elif kind == "AsyncAdmin":
            client = admin
        else:
            client = world.consumer(group_id="g")
            await client.assign([("t", 0)])
        with pytest.raises(ArgumentError, match=r"timeout_ms must be a whole number of milliseconds, not 1\.5"):
            await CALLS[call](client, 1.5)
        if kind == "AsyncProducer" and not call.endswith("init_transactions"):
            await client.send("t", b"v")
            await client.commit_transaction(timeout_ms=timedelta(seconds=30))
        await client.close(timedelta(seconds=10)) if client is not admin else None
        await admin.close()

    World(5, transaction_state_log_num_partitions="2").run(story)


def test_a_blocking_poll_is_checked_too() -> None:
    for consumer in (Consumer(), DeserializingConsumer(value_deserializer=bytes.decode)):
        with pytest.raises(ArgumentError, match=r"not 1\.0\. For 1\.0 seconds write 1000"):
            consumer.poll(1.0)  # type: ignore[arg-type]
        consumer.close()


def test_an_error_includes_the_limit_of_the_broker() -> None:
    async def story(world: World) -> None:
        async with world.consumer(group_id="g", session_timeout_ms=1_000) as consumer:
            await consumer.subscribe(["t"])
            said = r"INVALID_SESSION_TIMEOUT: session\.timeout\.ms: 1000 ms is not between 6000 and 1800000"
            with pytest.raises(KafkaError, match=said):
                await consumer.poll(10_000)
        async with world.producer(transactional_id="x", transaction_timeout_ms=900_001) as producer:
            said = r"INVALID_TRANSACTION_TIMEOUT: transaction\.timeout\.ms: 900001 ms is not between 1 and 900000"
            with pytest.raises(KafkaError, match=said):
                await producer.init_transactions()
        members = [world.consumer(group_id="full") for _ in range(2)]
        for member in members:
            await member.subscribe(["t"])
        polls = [asyncio.ensure_future(member.poll(20_000)) for member in members]
        done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_EXCEPTION)
        with pytest.raises(KafkaError, match=r"GROUP_MAX_SIZE_REACHED: group full has 1 members already"):
            next(poll for poll in done if poll.exception()).result()
        for poll in polls:
            poll.cancel()
        for member in members:
            await member.close()

    World(6, group_max_size="1").run(story)
