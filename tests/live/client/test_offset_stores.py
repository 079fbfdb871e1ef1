"""Offsets in a database: stored with the results in one transaction, on SQLite and on a real PostgreSQL."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Consumer, Producer
from ottla.client.stores.database_store import DatabaseOffsetStore, OffsetsMovedError
from ottla.errors import OttlaError
from ottla.types import TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Database:
    """One database that several processes could connect to."""

    def __init__(self, connect: Any, mark: str) -> None:
        self.connect = connect
        self.mark = mark

    def results(self) -> list[int]:
        with contextlib.closing(self.connect()) as connection, contextlib.closing(connection.cursor()) as cursor:
            cursor.execute("select value from results order by value")
            return [value for (value,) in cursor.fetchall()]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        made = Database(lambda: sqlite3.connect(tmp_path / "results.db", timeout=0.2), "?")
    else:
        socket = request.getfixturevalue("postgres")
        import psycopg

        made = Database(lambda: psycopg.connect(f"host={socket} user=ottla dbname=postgres"), "%s")
    with contextlib.closing(made.connect()) as connection, contextlib.closing(connection.cursor()) as cursor:
        cursor.execute("create table results (value integer)")
        connection.commit()
    return made


@pytest.fixture
def connection(database: Database) -> Iterator[Any]:
    with contextlib.closing(database.connect()) as opened:
        yield opened


def test_offsets_come_back_after_a_restart(database: Database, connection: Any) -> None:
    """Spec: E10."""
    store = DatabaseOffsetStore(connection)
    assert store.load([FIRST, SECOND]) == {}
    store.save({FIRST: 5, SECOND: 0})
    store.save({FIRST: 7})
    connection.commit()
    with contextlib.closing(database.connect()) as later:
        assert DatabaseOffsetStore(later).load([FIRST, SECOND]) == {FIRST: 7, SECOND: 0}
        assert DatabaseOffsetStore(later).load([SECOND]) == {SECOND: 0}


def test_nothing_is_stored_before_the_commit(database: Database, connection: Any) -> None:
    store = DatabaseOffsetStore(connection)
    store.load([FIRST])
    store.save({FIRST: 5})
    connection.rollback()
    assert store.load([FIRST]) == {}
    store.save({FIRST: 6})
    connection.commit()
    assert store.load([FIRST]) == {FIRST: 6}


def test_consumers_with_different_names_are_independent(connection: Any) -> None:
    """Spec: A7. In a broadcast every member has its own offsets."""
    for name, offset in (("one", 10), ("two", 12), ("three", 100_000)):
        store = DatabaseOffsetStore(connection, name=name)
        store.load([FIRST])
        store.save({FIRST: offset})
    connection.commit()
    found = [DatabaseOffsetStore(connection, name=name).load([FIRST])[FIRST] for name in ("one", "two", "three")]
    assert found == [10, 12, 100_000]


def test_a_consumer_that_was_replaced_cannot_store_its_results(database: Database, connection: Any) -> None:
    """Spec: E9, E10. The zombie's results are rolled back with its offsets."""
    zombie = DatabaseOffsetStore(connection)
    zombie.load([FIRST])
    with zombie.transaction():
        zombie.save({FIRST: 5})
    with contextlib.closing(database.connect()) as other:
        successor = DatabaseOffsetStore(other)
        assert successor.load([FIRST]) == {FIRST: 5}
        with successor.transaction() as cursor:
            cursor.execute(f"insert into results values ({database.mark})", (5,))
            successor.save({FIRST: 6})

    def store_stale_results() -> None:
        with zombie.transaction() as cursor:
            cursor.execute(f"insert into results values ({database.mark})", (5,))
            zombie.save({FIRST: 6})

    with pytest.raises(OffsetsMovedError):
        store_stale_results()
    assert database.results() == [5]


def test_two_consumers_cannot_both_start_a_partition(database: Database, connection: Any) -> None:
    one = DatabaseOffsetStore(connection)
    one.load([FIRST])
    connection.rollback()
    with contextlib.closing(database.connect()) as other:
        two = DatabaseOffsetStore(other)
        two.load([FIRST])
        other.rollback()
        with one.transaction():
            one.save({FIRST: 5})

        def store_too() -> None:
            with two.transaction() as cursor:
                cursor.execute(f"insert into results values ({database.mark})", (1,))
                two.save({FIRST: 5})

        with pytest.raises(Exception, match=r"(?i)unique"):
            store_too()
    assert database.results() == []


STEPS = ["polled", "result stored", "offset stored", "committed"]


class Crash(BaseException):
    pass


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_neither_loses_nor_repeats(broker: Any, topic: str, database: Database, step: str) -> None:
    """Spec: E10. Offsets in the database transaction that stores the result."""
    place, count = TopicPartition(topic, 0), 12
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, f"{number}", partition=0)

    def instance(crash_at: int | None) -> None:
        settings = {"bootstrap_servers": broker.bootstrap, "auto_offset_reset": "earliest"}
        with contextlib.closing(database.connect()) as connection, Consumer(None, **settings) as consumer:

            def reached(now: str) -> None:
                if now == step and crash_at is not None and consumer.position(place) >= crash_at:
                    raise Crash

            store = DatabaseOffsetStore(connection)
            consumer.assign([place])
            for partition, offset in store.load([place]).items():
                consumer.seek(partition, offset)
            while consumer.position(place) < count:
                records = list(consumer.poll(5_000, max_records=3))
                reached("polled")
                cursor = connection.cursor()
                for record in records:
                    cursor.execute(f"insert into results values ({database.mark})", (int(record.value or b""),))
                reached("result stored")
                store.save({place: consumer.position(place)})
                reached("offset stored")
                connection.commit()
                reached("committed")

    for crash_at in (1, 7, 10):
        with contextlib.suppress(Crash):
            instance(crash_at)
    instance(None)
    assert database.results() == list(range(count))


def test_parameters_use_the_paramstyle_of_the_module() -> None:
    class Cursor:
        def __init__(self) -> None:
            self.statements: list[str] = []

        def execute(self, statement: str, values: Any = ()) -> None:
            self.statements.append(statement)

        def fetchall(self) -> list[Any]:
            return []

        def close(self) -> None: ...

    class Connection:
        def __init__(self) -> None:
            self.last = Cursor()

        def cursor(self) -> Cursor:
            return self.last

        def commit(self) -> None: ...

    for style, expected in {"qmark": "?", "format": "%s", "numeric": ":1", "numeric_dollar": "$1"}.items():
        connection = Connection()
        DatabaseOffsetStore(connection, paramstyle=style, create=False).load([FIRST])
        assert connection.last.statements[-1].endswith(f"consumer = {expected}")
    with pytest.raises(OttlaError, match="named"):
        DatabaseOffsetStore(Connection(), paramstyle="named", create=False)


def test_an_invalid_table_name_is_refused() -> None:
    with (
        contextlib.closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(OttlaError, match="not a valid table name"),
    ):
        DatabaseOffsetStore(connection, table="offsets; drop table results")
