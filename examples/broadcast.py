"""Broadcast within a group: every member reads everything, for example to fill a cache. Each keeps its own offsets.

python examples/broadcast.py 127.0.0.1:9092 prices caches worker-1 worker-1.db

A group stores one offset per partition, so the commits of the members would overwrite each other. Instead, each member
has a database and stores a record and the offset after it in one transaction. A member that is killed at any time
neither loses nor duplicates a record. Its lag is shown under a separate group: `ottla group describe caches.worker-1`.
"""

import contextlib
import sqlite3
import sys

from ottla import Consumer, DatabaseOffsetStore, GroupMirror, RebalanceListener, TopicPartition
from ottla.assignors.broadcast import BroadcastAssignor


class FromDatabase(RebalanceListener):
    """Seeks to the offsets in the database of this member."""

    def __init__(self, consumer: Consumer, store: DatabaseOffsetStore) -> None:
        self.consumer = consumer
        self.store = store

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for partition, offset in self.store.load(partitions).items():
            self.consumer.seek(partition, offset)


def run(
    bootstrap: str,
    topic: str,
    group: str,
    member: str,
    path: str,
    *,
    until_end: bool = False,
    until_records: int = 0,
    max_poll_records: int = 500,
) -> None:
    """Stores records endlessly, to the end of the topic, or until `until_records` are stored."""
    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "max.poll.records": max_poll_records}
    settings["heartbeat.interval.ms"] = 500  # detect joining and leaving members quickly
    with (
        contextlib.closing(sqlite3.connect(path)) as connection,
        Consumer(
            settings,
            bootstrap_servers=bootstrap,
            group_id=group,
            client_id=member,
            partition_assignment_strategy=[BroadcastAssignor],
        ) as consumer,
    ):
        connection.execute("create table if not exists cache (partition_id integer, offset_id integer, value blob)")
        store = DatabaseOffsetStore(connection, name=member)
        store.mirror = GroupMirror(consumer, f"{group}.{member}")
        consumer.subscribe([topic], listener=FromDatabase(consumer, store))
        stored = 0
        while not (until_end and consumer.is_at_end()):
            records = list(consumer.poll(1_000))
            if records:
                with store.transaction() as cursor:
                    for record in records:
                        row = (record.partition, record.offset, record.value)
                        cursor.execute("insert into cache values (?, ?, ?)", row)
                    store.save({TopicPartition(r.topic, r.partition): r.offset + 1 for r in records})
                stored += len(records)
            if until_records and stored >= until_records:
                return


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    run(*sys.argv[1:6])
