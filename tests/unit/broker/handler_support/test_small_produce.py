"""The shortcut for small Produce requests: the same bytes and the same log as without it."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.dispatch import Dispatcher, Route
from ottla.errors import ErrorCode
from ottla.log.partition_log import PartitionLog
from ottla.net.server.server import Disconnect
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.record_batch import Codec, build_batch, control_batch, iter_batches
from ottla.protocol.schema import Message
from ottla.replication.config import ReplicaConfig
from ottla.security.authorizer import Authorizer
from tests.support.worlds.data_world import DataWorld, batch_of, only_partition, produce_request, topic_id_of

VERSIONS = range(3, 14)


class Twins:
    """Two brokers with the same topics. Only the first has the shortcut."""

    def __init__(self, directory: Path, config: ReplicaConfig | None = None) -> None:
        self.worlds = [DataWorld(str(directory / name), config=config) for name in ("with", "without")]
        self.dispatchers = [Dispatcher(world.services) for world in self.worlds]
        self.used = 0
        """How many requests the shortcut has answered."""

    def topic(self, name: str, **details: Any) -> None:
        for world in self.worlds:
            world.topic(name, **details)

    def send(self, request: Message, version: int) -> bytes | None:
        """The response frame, which is the same from both, as is what they have stored."""
        frame = encode_request(0, version, 7, "test", request)[4:]
        for dispatcher in self.dispatchers:
            dispatcher.routes.setdefault(version, Route(0, version))
        with_shortcut, without = (dispatcher.routes[version] for dispatcher in self.dispatchers)
        shortcut, without.shortcut = with_shortcut.shortcut, None

        def counted(*arguments: Any) -> bytes | None:
            assert shortcut is not None
            answer = shortcut(*arguments)
            self.used += answer is not None
            return answer

        with_shortcut.shortcut = shortcut and counted
        answers = [self._answer(number, frame) for number in (0, 1)]
        with_shortcut.shortcut = shortcut
        assert answers[0] == answers[1]
        assert with_shortcut.requests == without.requests
        assert self.stored(0) == self.stored(1)
        answer: bytes | None = answers[0]
        return answer

    def _answer(self, number: int, frame: bytes) -> Any:
        world, dispatcher = self.worlds[number], self.dispatchers[number]

        async def handle() -> Any:
            answer = dispatcher(frame, world.connection)  # type: ignore[arg-type]
            return await answer if answer is not None and not isinstance(answer, bytes) else answer  # type: ignore[misc]

        try:
            return world.run(handle())
        except Disconnect as error:
            return str(error)

    def stored(self, number: int) -> list[tuple[str, int, int, bytes]]:
        logs = [replica.log for replica in self.worlds[number].replicas.replicas()]
        return sorted(
            (
                str(log.topic_partition),
                log.log_end_offset,
                log.high_watermark,
                log.read(0, 2**20, upper_bound=2**62),
            )
            for log in logs
        )

    def close(self) -> None:
        for world in self.worlds:
            world.close()


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[Twins]:
    twins = Twins(tmp_path)
    twins.topic("orders", partitions=2)
    yield twins
    twins.close()


def one(
    batch: bytes | None, version: int = 9, *, name: str = "orders", index: int = 0, **details: Any
) -> ProduceRequest:
    """A request with one batch."""
    topic: str | bytes = topic_id_of(name) if version >= 13 else name
    return produce_request({(topic, index): batch}, **details)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_a_plain_batch_takes_the_shortcut_from_version_9_on(twins: Twins, version: int, acks: int) -> None:
    for _ in range(2):
        assert twins.send(one(batch_of("a", "b"), version, index=1, acks=acks), version)
    assert twins.used == (2 if version >= 9 else 0)
    assert twins.worlds[0].log("orders", 1).log_end_offset == 4


def test_an_idempotent_batch_and_its_retry_take_the_shortcut(twins: Twins) -> None:
    batch = batch_of("a", producer_id=5, producer_epoch=0, base_sequence=0)
    assert twins.send(one(batch), 9) == twins.send(one(batch), 9)
    assert twins.used == 2
    assert twins.worlds[0].log("orders").log_end_offset == 1


def test_a_topic_with_append_times_takes_the_shortcut(twins: Twins) -> None:
    twins.topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
    twins.send(one(batch_of("a"), name="stamped"), 9)
    assert twins.used == 1


def test_a_follower_that_is_not_in_sync_with_acks_1_does_not_matter(twins: Twins) -> None:
    twins.topic("replicated", replicas=(0, 1))
    twins.send(one(batch_of("a"), name="replicated", acks=1), 9)
    assert twins.used == 1


BATCH = batch_of("x" * 100)
OTHERS = {
    "acks=0": one(BATCH, acks=0),
    "acks=2": one(BATCH, acks=2),
    "no batch": one(None),
    "an empty batch": one(b""),
    "a wrong checksum": one(BATCH[:-1] + b"?"),
    "a truncated batch": one(BATCH[:-5]),
    "two batches": one(BATCH + BATCH),
    "an old format": one(BATCH[:16] + b"\1" + BATCH[17:]),
    "a large batch": one(batch_of("x" * 2_000_000)),
    "a wrong sequence": one(batch_of("a", producer_id=6, producer_epoch=0, base_sequence=3)),
    "a transactional batch": one(
        batch_of("a", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True), transactional_id="t"
    ),
    "a transactional batch without an id": one(
        batch_of("a", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    ),
    "a control batch": one(
        control_batch(commit=True, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp=0)
    ),
    "compression": one(build_batch([(0, None, b"x" * 100, ())], codec=Codec.LZ4)),
    "an unknown topic": one(BATCH, name="nowhere"),
    "an unknown partition": one(BATCH, index=9),
    "a negative partition": one(BATCH, index=-1),
    "two partitions": produce_request({("orders", 0): BATCH, ("orders", 1): BATCH}),
    "an internal topic": one(BATCH, name="__consumer_offsets"),
    "a topic that compresses": one(BATCH, name="compressed"),
    "a compacted topic, and no keys": one(BATCH, name="compacted"),
    "another leader": one(BATCH, name="followed"),
    "acks=all and too few replicas in sync": one(BATCH, name="safe"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_the_handler_answers_everything_else(twins: Twins, case: str) -> None:
    twins.topic("compressed", configs={"compression.type": "zstd"})
    twins.topic("compacted", configs={"cleanup.policy": "compact"})
    twins.topic("followed", replicas=(1, 0), leader=1)
    twins.topic("safe", configs={"min.insync.replicas": "2"}, replicas=(0, 1), isr=(0,))
    twins.topic("__consumer_offsets")
    for world in twins.worlds:
        world.append("orders", "first", producer_id=6, producer_epoch=0, base_sequence=0)
    twins.send(OTHERS[case], 9)
    assert twins.used == 0


@pytest.mark.parametrize("case", ["a wrong checksum", "an unknown topic", "compression", "acks=2"])
def test_a_request_behind_one_that_failed_takes_the_shortcut(twins: Twins, case: str) -> None:
    twins.send(OTHERS[case], 9)
    twins.send(one(BATCH), 9)
    assert twins.used == 1


def test_with_acls_the_handler_answers(twins: Twins) -> None:
    for world in twins.worlds:
        world.services.authorizer = Authorizer()
    twins.send(one(BATCH), 9)
    assert (twins.used, twins.worlds[0].log("orders").log_end_offset) == (0, 0)


def test_commits_that_wait_for_the_disk_are_left_to_the_handler(tmp_path: Path) -> None:
    twins = Twins(tmp_path, ReplicaConfig(flush_before_ack=True))
    twins.topic("orders")
    twins.send(one(BATCH, acks=-1), 9)
    assert twins.used == 0
    twins.close()


def test_nothing_overtakes_a_batch_that_is_still_being_checked(twins: Twins) -> None:
    """A thread decompresses a large batch; the next request of the connection waits for it."""
    slow = one(build_batch([(0, None, bytes(3_000_000), ())], codec=Codec.LZ4))
    frames = [encode_request(0, 9, number, "test", request)[4:] for number, request in enumerate((slow, one(BATCH)))]
    world, dispatcher = twins.worlds[0], twins.dispatchers[0]

    async def both() -> list[Any]:
        answers: list[Any] = [dispatcher(frame, world.connection) for frame in frames]  # type: ignore[arg-type]
        return [await answer for answer in answers]

    world.run(both())
    log = world.log("orders")
    sizes = [header.batch_length for _, header in iter_batches(log.read(0, 2**20, upper_bound=2))]
    assert sizes == sorted(sizes, reverse=True), "the large one is first"
    assert log.log_end_offset == 2


def test_a_failed_write_is_reported_and_not_tried_again(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second try might succeed when the broker is about to give up its leadership already."""
    tries = []

    def full(handle: int, buffers: Any) -> int:
        tries.append(handle)
        raise OSError(errno.ENOSPC, "No space left on device")

    for world in twins.worlds:
        monkeypatch.setattr(world.disk, "append", full)
    for version in (9, 13):
        answer = twins.send(one(BATCH, version), version)
        assert answer is not None
        response = decode_response(0, version, answer[4:])[1]
        assert only_partition(response).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(tries) == 2 * len(twins.worlds)
    assert twins.used == 2


@pytest.mark.parametrize("bug", [IndexError("a bug"), AssertionError("a bug"), OSError("a bug")])
def test_a_bug_behind_the_shortcut_is_answered_and_logged_like_one_in_the_handler(
    twins: Twins, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bug: Exception
) -> None:
    def fails(*_: Any) -> None:
        raise bug

    monkeypatch.setattr(PartitionLog, "advance_high_watermark", fails)
    answer = twins.send(one(BATCH), 9)
    assert answer is not None
    assert only_partition(decode_response(0, 9, answer[4:])[1]).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert [dispatcher.routes[9].errors for dispatcher in twins.dispatchers] == [1, 1]
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert twins.worlds[0].log("orders").log_end_offset == 1, "it was stored before the bug, and not once more"
