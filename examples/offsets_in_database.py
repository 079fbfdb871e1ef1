"""Exactly once into a database: results and offsets are stored in one database transaction.

python examples/offsets_in_database.py 127.0.0.1:9092 orders bills.db
"""

import contextlib
import sqlite3
import sys

from ottla import Consumer, DatabaseOffsetStore, GroupMirror, TopicPartition


def run(
    bootstrap: str,
    topic: str,
    path: str,
    *,
    group: str = "biller",
    until_end: bool = False,
    max_poll_records: int = 500,
) -> None:
    """Stores records endlessly, or to the end of the topic."""
    place = TopicPartition(topic, 0)
    settings = {"auto.offset.reset": "earliest", "max.poll.records": max_poll_records}
    with (
        contextlib.closing(sqlite3.connect(path)) as connection,
        Consumer(settings, bootstrap_servers=bootstrap) as consumer,
    ):
        connection.execute("create table if not exists bills (id integer primary key, text text)")
        store = DatabaseOffsetStore(connection, name=group)
        store.mirror = GroupMirror(consumer, group)  # only to show the lag: `ottla group describe biller`
        consumer.assign([place])
        for partition, offset in store.load([place]).items():
            consumer.seek(partition, offset)
        while not (until_end and consumer.is_at_end()):
            records = list(consumer.poll(1_000))
            with store.transaction() as cursor:
                for record in records:
                    text = (record.value or b"").decode()
                    cursor.execute("insert into bills (id, text) values (?, ?)", (record.offset, text))
                if records:
                    store.save({place: records[-1].offset + 1})


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    run(*sys.argv[1:4])
