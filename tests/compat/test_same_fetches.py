"""The same Fetch requests to Ottla and to Apache Kafka: errors, sizes, sessions, in every version."""

from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.records.record_batch import Codec, iter_batches, read_records
from tests.support.wire.raw import Side, batch

pytestmark = pytest.mark.oracle


def fetch(
    side: Side,
    *wanted: tuple[int, int],
    version: int = 11,
    session: tuple[int, int] = (0, -1),
    forgotten: tuple[int, ...] = (),
    topic: str = "",
    **more: Any,
) -> Any:
    """Fetches (partition, offset) pairs; returns (error, session id, partitions)."""
    settings: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, **more}
    partition_settings = {
        name: settings.pop(name)
        for name in ("partition_max_bytes", "current_leader_epoch", "last_fetched_epoch")
        if name in settings
    }
    partition_settings.setdefault("partition_max_bytes", 1 << 20)
    by_id = version >= 13
    named = {"topic_id": side.topic_id} if by_id else {"topic": topic or side.topic}
    request = FetchRequest(
        replica_id=-1,
        topics=[
            FetchRequest.FetchTopic(
                partitions=[
                    FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, **partition_settings)
                    for partition, offset in wanted
                ],
                **named,
            )
        ]
        if wanted
        else [],
        forgotten_topics_data=[FetchRequest.ForgottenTopic(partitions=list(forgotten), **named)] if forgotten else [],
        **settings,
    )
    if version >= 7:
        request.session_id, request.session_epoch = session
    return side.connection.ask(request, version)


def shown(side: Side, response: Any) -> Any:
    """The answer in comparable form: records as their offsets and values."""
    partitions = []
    for topic in response.responses:
        for partition in topic.partitions:
            records = bytes(partition.records or b"")
            partitions.append(
                (
                    partition.partition_index,
                    ErrorCode(partition.error_code).name,
                    partition.high_watermark,
                    partition.last_stable_offset,
                    partition.log_start_offset,
                    [
                        (record.offset, record.timestamp, record.key, record.value)
                        for position, header in iter_batches(records)
                        for record in read_records(records, position, header)
                    ],
                    side.plain(partition.aborted_transactions or []),
                    partition.preferred_read_replica,
                    side.plain(partition.diverging_epoch),
                )
            )
    return ErrorCode(response.error_code).name, sorted(partitions)


def fill(side: Side) -> None:
    side.produce(batch(b"a", b"b"))
    side.produce(batch(b"c" * 200))
    side.produce(batch(b"d"))
    side.produce(batch(b"e"), partition=1)


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_in_every_version(same: Any, version: int) -> None:
    def script(side: Side) -> Any:
        fill(side)
        return shown(side, fetch(side, (0, 1), (1, 0), version=version))

    same(script)


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_stored_batches_are_equal_to_the_byte(same: Any, codec: Codec) -> None:
    """Offsets and leader epoch stamped in, everything else as the producer sent it."""

    def script(side: Side) -> Any:
        for values in ([b"a" * 500, b"b"], [b"c"], [b"d"] * 50):
            side.produce(batch(*values, codec=codec))
        response = fetch(side, (0, 0))
        return bytes(response.responses[0].partitions[0].records)

    assert same(script)


def test_fetch_from_missing_partitions_and_out_of_range(same: Any) -> None:
    def script(side: Side) -> Any:
        fill(side)
        return [
            shown(side, fetch(side, (0, 99))),
            shown(side, fetch(side, (0, 4))),
            shown(side, fetch(side, (0, -5))),
            shown(side, fetch(side, (7, 0))),
            shown(side, fetch(side, (0, 0), topic=side.topic + "-not")),
            shown(side, fetch(side, (0, 0), current_leader_epoch=0)),
            shown(side, fetch(side, (0, 0), current_leader_epoch=9)),
            shown(side, fetch(side, (0, 0), isolation_level=1)),
        ]

    same(script)


def test_an_unknown_topic_id(same: Any) -> None:
    def script(side: Side) -> Any:
        side.topic_id = bytes(15) + b"\x09"
        return shown(side, fetch(side, (0, 0), version=13))

    same(script)


def test_small_limits_still_give_one_batch(same: Any) -> None:
    def script(side: Side) -> Any:
        fill(side)
        return [
            shown(side, fetch(side, (0, 0), (1, 0), partition_max_bytes=1)),
            shown(side, fetch(side, (0, 2), (1, 0), max_bytes=1)),
            shown(side, fetch(side, (0, 0), partition_max_bytes=150)),
            shown(side, fetch(side, (0, 3), (1, 0), max_bytes=0)),
        ]

    same(script)


def test_diverging_epochs(same: Any) -> None:
    def script(side: Side) -> Any:
        fill(side)
        return [
            shown(side, fetch(side, (0, 2), version=12, last_fetched_epoch=0)),
            shown(side, fetch(side, (0, 99), version=12, last_fetched_epoch=0)),
            shown(side, fetch(side, (0, 2), version=12, last_fetched_epoch=5)),
        ]

    same(script)


@pytest.mark.parametrize("version", [7, 12, 13, 17])
def test_a_session_returns_only_changes(same: Any, version: int) -> None:
    """KIP-227: a full fetch, then only what is new, forgotten or wrong."""

    def script(side: Side) -> Any:
        fill(side)
        outcomes = []
        first = fetch(side, (0, 0), (1, 0), version=version, session=(0, 0))
        outcomes.append((shown(side, first), first.session_id != 0))
        number = first.session_id

        def again(epoch: int, *wanted: tuple[int, int], **more: Any) -> None:
            answer = fetch(side, *wanted, version=version, session=(number, epoch), **more)
            outcomes.append((shown(side, answer), answer.session_id == number))

        again(1, (0, 4), (1, 1))
        again(2)
        side.produce(batch(b"f"), partition=1)
        again(3)
        again(4, (1, 2))
        again(5, forgotten=(1,))
        side.produce(batch(b"g"), partition=1)
        again(6)
        again(9)
        again(7, (0, 0))
        return outcomes

    same(script)


def test_an_unknown_session(same: Any) -> None:
    def script(side: Side) -> Any:
        answer = fetch(side, (0, 0), session=(123_456, 1))
        closed = fetch(side, (0, 0), session=(123_456, -1))
        return shown(side, answer), answer.session_id, shown(side, closed), closed.session_id

    same(script)


def test_a_closed_session_is_gone(same: Any) -> None:
    def script(side: Side) -> Any:
        first = fetch(side, (0, 0), session=(0, 0))
        closing = fetch(side, session=(first.session_id, -1))
        after = fetch(side, session=(first.session_id, 1))
        return shown(side, closing), closing.session_id, shown(side, after)

    same(script)
