"""What type checkers and editors see of the public API: the examples and a page of calls pass mypy --strict."""

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

EXAMPLES = Path(__file__).parents[3] / "examples"
SOURCE = Path(__file__).parents[3] / "src"

PAGE = """
from contextlib import AbstractContextManager
from typing import Any, assert_type

import ottla
from ottla import (
    Admin, AsyncConsumer, AsyncDeserializingConsumer, AsyncProducer, CommittedOffset, Consumer, ConsumerRecord,
    DatabaseOffsetStore, DeserializingConsumer, FileOffsetStore, GroupMirror, NewTopic, OffsetStore, Producer,
    RebalanceListener, SnapshotStore, StoredOffsets, TopicPartition,
)
from ottla.client.producer.speedups import Delivery
from ottla.client.consumer.deserializing import DeserializedRecord
from ottla.client.admin.group_model import GroupDescription, GroupListing
from ottla.client.core.model import (
    ConfigEntry, CreatedTopic, LogDirectory, OffsetAndTimestamp, RecordMetadata, Records, TopicDescription,
)
from ottla.client.admin.transaction_model import FencedProducer, PreparedTransaction, TransactionDescription
from ottla.client.transactions.requests import GroupMetadata
from ottla.client.transform import Transformed


def by_partition(
    consumer: Consumer,
    admin: Admin,
    offsets: dict[TopicPartition, int],
    commits: dict[TopicPartition, int | CommittedOffset],
    pairs: dict[tuple[str, int], int],
) -> None:
    consumer.commit(offsets)
    consumer.commit(commits)
    consumer.commit(pairs)
    consumer.commit_async(offsets)
    consumer.offsets_for_times(offsets)
    admin.alter_group_offsets("g", offsets)
    admin.alter_group_offsets("g", commits)
    admin.list_offsets(offsets)
    admin.delete_records(pairs)


class Orders(RebalanceListener):
    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None: ...


def produce(producer: Producer) -> None:
    assert_type(producer.send("orders", b"v", key="k", headers={"h": "x"}), Delivery)
    assert_type(producer.send_and_wait("orders", None).offset, int)
    assert_type(producer.send("orders").result(), RecordMetadata)
    assert_type(producer.transaction(), AbstractContextManager[None])
    with producer as entered, producer.transaction():
        assert_type(entered, Producer)
        producer.send_offsets_to_transaction({("orders", 0): 1, TopicPartition("orders", 1): 2}, "group")
    assert_type(producer.prepare_transaction(), PreparedTransaction)


def consume(consumer: Consumer) -> None:
    consumer.subscribe(["orders"], listener=Orders())
    assert_type(consumer.poll(100), Records)
    for record in consumer.poll(100):
        assert_type(record, ConsumerRecord)
        assert_type(record.value, bytes | None)
    for each in consumer:
        assert_type(each, ConsumerRecord)
    assert_type(consumer.assignment(), set[TopicPartition])
    consumer.commit({("orders", 0): 3})
    consumer.commit({TopicPartition("orders", 0): CommittedOffset(3, metadata="m")})
    assert_type(consumer.committed([("orders", 0)]), dict[TopicPartition, CommittedOffset | None])
    assert_type(consumer.position(("orders", 0)), int)
    assert_type(consumer.end_offsets([("orders", 0)]), dict[TopicPartition, int])
    assert_type(consumer.group_metadata(), GroupMetadata)


def deserialize() -> None:
    with DeserializingConsumer(value_deserializer=bytes.decode, group_id="g") as texts:
        assert_type(texts.poll(1), list[DeserializedRecord[bytes, str]])
        for record in texts:
            assert_type(record.value, str | None)
    with DeserializingConsumer(key_deserializer=int, value_deserializer=bytes.decode) as both:
        for record_of_both in both.poll():
            assert_type(record_of_both.key, int | None)


async def asynchronously(consumer: AsyncConsumer, producer: AsyncProducer) -> None:
    async for record in consumer:
        assert_type(record.offset, int)
    assert_type(await producer.send_and_wait("orders", "v"), RecordMetadata)
    async with AsyncDeserializingConsumer(value_deserializer=len) as sizes:
        assert_type(await sizes.poll(1), list[DeserializedRecord[bytes, int]])


def administer(admin: Admin) -> None:
    place = TopicPartition("orders", 0)
    assert_type(admin.create_topic("orders", partitions=3), CreatedTopic)
    assert_type(admin.create_topics([NewTopic("a", 3)]), list[CreatedTopic])
    assert_type(admin.list_topics(), list[TopicDescription])
    assert_type(admin.describe_configs("topic", "orders"), list[ConfigEntry])
    assert_type(admin.list_groups(), list[GroupListing])
    assert_type(admin.describe_groups(["g"])[0], GroupDescription)
    assert_type(admin.list_group_offsets("g"), dict[TopicPartition, CommittedOffset])
    assert_type(admin.list_offsets({place: -1})[place], OffsetAndTimestamp | None)
    assert_type(admin.delete_records({place: 5}), dict[TopicPartition, int])
    assert_type(admin.describe_log_dirs(), list[LogDirectory])
    assert_type(admin.describe_transactions(["t"]), list[TransactionDescription])
    assert_type(admin.fence_producers(["t"]), dict[str, FencedProducer])


def keep_offsets(consumer: Consumer, connection: Any) -> None:
    store: OffsetStore = FileOffsetStore("positions.json")
    store.mirror = GroupMirror(consumer, "shown")
    assert_type(store.load([TopicPartition("orders", 0)]), dict[TopicPartition, int])
    StoredOffsets(consumer, store, mirror="shown").save()
    with DatabaseOffsetStore(connection).transaction() as cursor:
        cursor.execute("select 1")
    opened = SnapshotStore.open(transactional_id="t", incremental=("o", 0), full=("s", 0))
    assert_type(opened, SnapshotStore)
    assert_type(opened.restored.state, bytes | None)


def transform() -> None:
    assert_type(ottla.transform(lambda record: record.value, "a", "b", group_id="g"), Transformed)


def mistakes(producer: Producer, consumer: Consumer, admin: Admin) -> None:
    reveal_type(producer.send_and_wait)
    reveal_type(consumer.poll)
    reveal_type(admin.describe_groups)
    Producer(lingr_ms=5)  # type: ignore[call-arg]
    Consumer(group_id=7)  # type: ignore[arg-type]
    Admin(group_id="g")  # type: ignore[call-arg]
    producer.send("orders", 42)  # type: ignore[arg-type]
    producer.send(7, b"v")  # type: ignore[arg-type]
    consumer.assign(["orders"])  # type: ignore[list-item]
    consumer.seek(("orders", 0), "end")  # type: ignore[arg-type]
    admin.create_topic("orders", partitions="3")  # type: ignore[arg-type]
    admin.create_topic("orders", partition=3)  # type: ignore[call-arg]
    OffsetStore()  # type: ignore[abstract]
"""


REVEALED = (
    "-> tuple[str, int, int, int, fallback=ottla.client.core.model.RecordMetadata]",
    "def (timeout_ms: int | datetime.timedelta =, *, max_records: int | None =) -> ottla.client.core.model.Records",
    "def (group_ids: typing.Sequence[str]) -> list[ottla.client.admin.group_model.GroupDescription]",
)
"""Signatures of the generated blocking API."""


def test_users_see_the_types_of_the_public_api(tmp_path: Path) -> None:
    """An unused `type: ignore` is an error too, so the mistakes at the end of the page are really found."""
    page = tmp_path / "page.py"
    page.write_text(PAGE)
    checked = [*sorted(EXAMPLES.glob("*.py")), page]
    strictly = ["--strict", "--config-file=", "--follow-imports=silent", "--disable-error-code=import-untyped"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *strictly, f"--cache-dir={tmp_path / 'cache'}", *map(str, checked)],
        env={"MYPYPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = [line for line in done.stdout.splitlines() if "Revealed type" in line]
    assert len(shown) == len(REVEALED)
    assert all(expected in line for expected, line in zip(REVEALED, shown, strict=True)), shown


def test_every_example_is_run_by_a_test() -> None:
    tests = [path.read_text() for path in (Path(__file__).parents[2]).rglob("test_*.py")]
    for example in EXAMPLES.glob("*.py"):
        assert any(f'"{example.stem}"' in text or f'"{example.name}"' in text for text in tests), example.name
