"""The database sink without Spark: staging, the single transaction, and everything that may be repeated."""

import contextlib
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from ottla.errors import OttlaError
from ottla.spark.database import ledger as ledger
from ottla.spark.database.connections import Database, connect, quoted
from ottla.spark.database.options import DatabaseOptions
from ottla.spark.database.rows import rows_of

ORDERS = StructType([StructField("id", LongType()), StructField("item", StringType())])
SINK = "3f5a"


class Shop:
    """A database with a table of orders, used as tasks and drivers use it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.options = DatabaseOptions.parse({"url": url, "table": "orders"})

    def connect(self) -> "contextlib.closing[Any]":
        return contextlib.closing(connect(self.options))

    def prepare(self, schema: StructType = ORDERS, **options: str) -> ledger.Target:
        with self.connect() as database:
            given = {"url": self.url, "table": "orders", **options}
            return ledger.prepare(database, DatabaseOptions.parse(given), schema)

    def stage(self, target: ledger.Target, batch_id: int, attempt: str, rows: list[Any], sink: str = SINK) -> int:
        with self.connect() as database:
            return ledger.stage(database, target, sink, batch_id, attempt, rows, 0)

    def move(self, target: ledger.Target, batch_id: int, attempts: dict[str, int], **more: Any) -> bool:
        arguments = {"replace": False, "positions": None, "now_ms": 1_000} | more
        with self.connect() as database:
            return ledger.move(database, target, arguments.pop("sink", SINK), batch_id, attempts, **arguments)

    def rows(self, table: str = "orders", columns: str = "*") -> list[Any]:
        with self.connect() as database:
            return sorted(database.query(f"select {columns} from {quoted(table)}"))

    def execute(self, *statements: str) -> None:
        with self.connect() as database, database.transaction():
            for statement in statements:
                database.execute(statement)


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    if request.param == "sqlite":
        return Shop(f"sqlite:///{tmp_path}/shop.db")
    socket = request.getfixturevalue("postgres")
    return Shop(f"postgresql://ottla@/postgres?host={socket}")


def test_a_batch_is_moved_into_the_table_atomically_and_leaves_no_staged_rows(shop: Shop) -> None:
    """Spec: F4, D1. Rows and progress in one transaction."""
    target = shop.prepare()
    attempts = {"a": shop.stage(target, 0, "a", [(1, "pear"), (2, None)]), "b": shop.stage(target, 0, "b", [(3, "")])}
    assert shop.rows() == []
    assert shop.move(target, 0, attempts, positions='{"orders":{"0":3}}', now_ms=77)
    assert shop.rows() == [(1, "pear"), (2, None), (3, "")]
    assert shop.rows("ottla_staging_orders") == []
    with shop.connect() as database:
        (entry,) = ledger.entries(database, shop.options)
    assert entry == ledger.Entry(SINK, "orders", 0, 3, '{"orders":{"0":3}}', 77)


def test_a_repeated_commit_writes_nothing_again(shop: Shop) -> None:
    target = shop.prepare()
    attempts = {"a": shop.stage(target, 0, "a", [(1, "pear")])}
    assert shop.move(target, 0, attempts)
    assert not shop.move(target, 0, attempts)
    again = {"z": shop.stage(target, 0, "z", [(1, "pear")])}
    assert not shop.move(target, 0, again), "the retry staged a second copy"
    assert shop.rows() == [(1, "pear")]
    assert shop.rows("ottla_staging_orders") == []


def test_a_batch_that_is_older_than_the_table_is_refused(shop: Shop) -> None:
    """A checkpoint restored from a backup reuses old batch ids for other rows. Skipping them would lose them."""
    target = shop.prepare()
    for batch_id in (4, 5):
        attempts = {f"a{batch_id}": shop.stage(target, batch_id, f"a{batch_id}", [(batch_id, "pear")])}
        assert shop.move(target, batch_id, attempts, positions=f'{{"orders":{{"0":{batch_id}}}}}')
    shop.stage(target, 3, "failed", [(1000, "fig")])
    attempts = {"a3": shop.stage(target, 3, "a3", [(1000, "fig"), (1001, "fig")])}
    with pytest.raises(OttlaError, match=r"checkpoint is older than the table: this is batch 3 .* batch 5") as refused:
        shop.move(target, 3, attempts, positions='{"orders":{"0":99}}')
    assert "newest checkpoint" in refused.value.hint
    assert "ottla_ledger" in refused.value.hint
    assert shop.rows() == [(4, "pear"), (5, "pear")]
    assert shop.rows("ottla_staging_orders") == [], "nothing stays staged either"
    assert [row[2] for row in shop.rows("ottla_ledger")] == [5]


def test_the_newest_batch_can_be_repeated_but_not_with_other_end_offsets(shop: Shop) -> None:
    target = shop.prepare()
    there, elsewhere = '{"orders":{"0":5}}', '{"orders":{"0":99}}'
    assert shop.move(target, 5, {"a": shop.stage(target, 5, "a", [(5, "pear")])}, positions=there)
    assert not shop.move(target, 5, {"b": shop.stage(target, 5, "b", [(5, "pear")])}, positions=there)
    assert not shop.move(target, 5, {"c": shop.stage(target, 5, "c", [(5, "pear")])}, positions=None), (
        "the end is unknown"
    )
    with pytest.raises(OttlaError, match=r"this is batch 5 .* already has a batch 5 with other end offsets"):
        shop.move(target, 5, {"d": shop.stage(target, 5, "d", [(99, "fig")])}, positions=elsewhere)
    assert shop.rows() == [(5, "pear")]
    assert shop.rows("ottla_staging_orders") == []
    assert shop.move(target, 6, {"e": shop.stage(target, 6, "e", [(6, "fig")])}, positions=None)
    assert not shop.move(target, 6, {"f": shop.stage(target, 6, "f", [(6, "fig")])}, positions=there), (
        "the end is unknown"
    )


def test_rows_of_failed_and_speculative_attempts_are_not_moved(shop: Shop) -> None:
    target = shop.prepare()
    shop.stage(target, 0, "failed", [(1, "pear")])
    attempts = {"counted": shop.stage(target, 0, "counted", [(1, "pear"), (2, "plum")])}
    shop.stage(target, 0, "speculative", [(1, "pear"), (2, "plum")])
    assert shop.move(target, 0, attempts)
    shop.stage(target, 0, "late", [(2, "plum")])
    assert shop.rows() == [(1, "pear"), (2, "plum")]
    assert shop.move(target, 1, {"next": shop.stage(target, 1, "next", [(3, "fig")])})
    assert shop.rows() == [(1, "pear"), (2, "plum"), (3, "fig")]
    assert shop.rows("ottla_staging_orders") == [], "the next batch deletes the late attempt's rows"


def test_a_batch_whose_staged_rows_were_lost_is_refused_and_changes_nothing(shop: Shop) -> None:
    target = shop.prepare()
    attempts = {"a": shop.stage(target, 0, "a", [(1, "pear"), (2, "plum")])}
    shop.execute('delete from ottla_staging_orders where "id" = 1')
    with pytest.raises(OttlaError, match="1 of 2 staged rows"):
        shop.move(target, 0, attempts)
    assert shop.rows() == []
    assert shop.move(target, 0, {"b": shop.stage(target, 0, "b", [(1, "pear"), (2, "plum")])})
    assert shop.rows() == [(1, "pear"), (2, "plum")]


def test_a_transaction_that_fails_midway_leaves_no_partial_batch(shop: Shop) -> None:
    shop.execute('create table orders ("id" bigint not null primary key, "item" text)')
    target = shop.prepare()
    assert shop.move(target, 0, {"a": shop.stage(target, 0, "a", [(1, "pear")])})
    attempts = {"b": shop.stage(target, 1, "b", [(2, "plum"), (1, "again")])}
    with pytest.raises(Exception, match=r"(?i)unique"):
        shop.move(target, 1, attempts)
    assert shop.rows() == [(1, "pear")]
    assert [row[2] for row in shop.rows("ottla_ledger")] == [0]


def test_sinks_of_one_table_keep_their_batches_apart(shop: Shop) -> None:
    target = shop.prepare()
    assert shop.move(target, 4, {"a": shop.stage(target, 4, "a", [(1, "pear")])})
    other = {"b": shop.stage(target, 0, "b", [(2, "plum")], sink="other")}
    assert shop.move(target, 0, other, sink="other")
    assert shop.rows() == [(1, "pear"), (2, "plum")]


def test_two_drivers_that_commit_one_batch_write_it_once(shop: Shop) -> None:
    target = shop.prepare()
    mine = {"a": shop.stage(target, 0, "a", [(1, "pear")])}
    theirs = {"b": shop.stage(target, 0, "b", [(1, "pear")])}
    assert [shop.move(target, 0, mine), shop.move(target, 0, theirs)] == [True, False]
    assert shop.rows() == [(1, "pear")]


def test_upsert_replaces_rows_by_key_and_the_last_of_a_batch_wins(shop: Shop) -> None:
    target = shop.prepare(upsertKeys="id")
    assert shop.move(target, 0, {"a": shop.stage(target, 0, "a", [(1, "pear"), (2, "plum"), (1, "fig")])})
    assert shop.rows() == [(1, "fig"), (2, "plum")]
    assert shop.move(target, 1, {"b": shop.stage(target, 1, "b", [(2, "lime")])})
    assert shop.rows() == [(1, "fig"), (2, "lime")]
    with shop.connect() as database:
        ledger.write_directly(database, target, [(2, "kiwi"), (3, "nut")])
    assert shop.rows() == [(1, "fig"), (2, "kiwi"), (3, "nut")]


def test_upsert_keys_without_a_unique_index_are_refused_with_the_statement_that_creates_one(shop: Shop) -> None:
    shop.execute(
        'create table orders ("id" bigint, "item" text, "day" bigint)',
        'create unique index "wider" on orders ("id", "day")',
        'create unique index "part" on orders ("id") where "id" > 10',
        'create unique index "lowered" on orders (lower("item"))',
        'create index "plain" on orders ("id")',
    )
    with pytest.raises(OttlaError, match="upsertKeys is id, and table orders has no primary key or unique") as refused:
        shop.prepare(upsertKeys="id")
    with pytest.raises(OttlaError, match=r"upsertKeys is id, item, and .* exactly these columns"):
        shop.prepare(upsertKeys="id,item")
    with pytest.raises(OttlaError, match="upsertKeys is item, and"):
        shop.prepare(upsertKeys="item")
    shop.execute(refused.value.hint.removeprefix("Create one: ").partition(". ")[0])
    target = shop.prepare(upsertKeys="ID")
    assert shop.move(target, 0, {"a": shop.stage(target, 0, "a", [(1, "pear"), (1, "fig")])})
    assert shop.rows(columns='"id", "item"') == [(1, "fig")]


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        ('("id" integer primary key, "item" text)', "id"),
        ('("id" bigint, "item" varchar(20), primary key ("item", "id"))', "id,item"),
        ('("id" bigint unique, "item" text)', "id"),
    ],
)
def test_upsert_keys_can_be_a_primary_key_or_a_unique_column_in_any_order(shop: Shop, table: str, keys: str) -> None:
    shop.execute(f"create table orders {table}")
    schema = StructType([StructField("id", IntegerType()), StructField("item", StringType())])
    target = shop.prepare(schema, upsertKeys=keys)
    for batch_id in range(2):
        attempt = f"a{batch_id}"
        assert shop.move(target, batch_id, {attempt: shop.stage(target, batch_id, attempt, [(1, "pear")])})
    assert shop.rows() == [(1, "pear")]


def test_an_index_that_postgres_cannot_use_for_upserts_is_refused(postgres: Path) -> None:
    """A deferrable constraint cannot decide which row to replace."""
    shop = Shop(f"postgresql://ottla@/postgres?host={postgres}")
    shop.execute(
        "create table orders (id bigint unique deferrable, item text)",
        "create unique index carries on orders (item) include (id)",
    )
    with pytest.raises(OttlaError, match="upsertKeys is id, and table orders has no primary key"):
        shop.prepare(upsertKeys="id")
    assert shop.prepare(upsertKeys="item").keys == ("item",)


def test_replacing_the_table_is_a_single_transaction_too(shop: Shop) -> None:
    target = shop.prepare()
    assert shop.move(target, 0, {"a": shop.stage(target, 0, "a", [(1, "pear")])}, replace=True)
    attempts = {"b": shop.stage(target, 1, "b", [(2, "plum")])}
    assert shop.move(target, 1, attempts, replace=True)
    assert not shop.move(target, 1, attempts, replace=True), "a repeated batch must not empty the table"
    assert shop.rows() == [(2, "plum")]


def test_a_claim_succeeds_once(shop: Shop) -> None:
    """Spec: D1. At-most-once: the claim is written before the rows."""
    target = shop.prepare()
    with shop.connect() as database:
        assert ledger.claim(database, target, SINK, 0, 1)
        assert not ledger.claim(database, target, SINK, 0, 1)
        assert ledger.claim(database, target, SINK, 0, 2)
        with database.transaction():
            ledger.note(database, target, SINK, 1, 0, None, 1)
    assert shop.rows("ottla_claims") == []


def test_every_type_is_read_back_unchanged(shop: Shop) -> None:
    schema = StructType(
        [
            StructField("a b", BooleanType()),
            StructField("when", TimestampType()),
            StructField("day", DateType()),
            StructField("price", DecimalType(10, 2)),
            StructField("big", DecimalType(38, 18)),
            StructField("raw", BinaryType()),
            StructField("tags", ArrayType(StringType())),
            StructField("counts", MapType(StringType(), IntegerType())),
            StructField("order?", StructType([StructField("x", DoubleType()), StructField("y", DateType())])),
        ]
    )
    moment = datetime(2026, 11, 15, 23, 59, 59, 123_456, UTC)
    big = Decimal("12345678901234567890.123456789012345678")
    arrow = pa.schema(
        [
            ("a b", pa.bool_()),
            ("when", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("price", pa.decimal128(10, 2)),
            ("big", pa.decimal128(38, 18)),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.string())),
            ("counts", pa.map_(pa.string(), pa.int32())),
            ("order?", pa.struct([("x", pa.float64()), ("y", pa.date32())])),
        ]
    )
    row = (True, moment, date(2026, 2, 3), Decimal("19.90"), big, b"\x00\xff", ["ž", None], [("a", 1)])
    columns = [[value, None] for value in (*row, {"x": float("nan"), "y": date(2026, 1, 2)})]
    batch = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, arrow, strict=True)], schema=arrow)
    target = shop.prepare(schema)
    with shop.connect() as database:
        rows = list(rows_of(batch, schema, database.dialect))
        is_postgres = database.dialect == "postgresql"
    assert shop.move(target, 0, {"a": shop.stage(target, 0, "a", rows)})
    with shop.connect() as database:
        stored, empty = database.query('select * from orders order by "a b" is null')
    assert empty == (None,) * 9
    nested = {"x": "nan", "y": "2026-01-02"}
    if is_postgres:
        assert stored == (*row[:7], {"a": 1}, nested)
    else:
        texts = ("2026-11-15 23:59:59.123456+00:00", "2026-02-03", 19.9, str(big), b"\x00\xff")
        assert stored == (1, *texts, '["ž",null]', '{"a":1}', '{"x":"nan","y":"2026-01-02"}')


def test_an_existing_table_is_used_unchanged(shop: Shop) -> None:
    shop.execute("create table Orders (ID bigint, Item varchar(20), noted integer default 7)")
    target = shop.prepare()
    assert shop.move(target, 0, {"a": shop.stage(target, 0, "a", [(1, "pear")])})
    assert shop.rows(target.table) == [(1, "pear", 7)]
    shop.execute("alter table orders add column late text")
    wider = StructType([*ORDERS.fields, StructField("late", StringType())])
    target = shop.prepare(wider)
    assert shop.move(target, 1, {"b": shop.stage(target, 1, "b", [(2, "fig", "x")])})
    assert shop.rows(target.table)[1] == (2, "fig", 7, "x")


@pytest.mark.parametrize(
    ("statement", "schema", "cause", "hint"),
    [
        ("create table orders (id bigint)", ORDERS, "has no column item; it has id", "alter table orders add column"),
        (
            "create table orders (id bigint, item text, code text not null)",
            ORDERS,
            "needs a value for column code",
            "default",
        ),
        (
            "create table orders (id integer, item integer)",
            StructType([StructField("item", StringType())]),
            "column item is string in the query and integer in table orders",
            "Cast it",
        ),
        (
            "create table unused (x integer)",
            StructType([StructField("v", VariantType())]),
            "column v is variant",
            "cast(v as string)",
        ),
    ],
)
def test_columns_that_do_not_fit_are_reported_with_their_types(
    shop: Shop, statement: str, schema: StructType, cause: str, hint: str
) -> None:
    shop.execute(statement)
    with pytest.raises(OttlaError) as refused:
        shop.prepare(schema)
    assert cause in refused.value.message.lower()
    assert hint in refused.value.hint


def test_an_upsert_key_that_the_query_lacks_is_refused_before_the_table_is_created(shop: Shop) -> None:
    with pytest.raises(OttlaError, match=r"upsertKeys names code, which is not a column of the query \(id, item\)"):
        shop.prepare(upsertKeys="code")
    with shop.connect() as database:
        assert database.find_table("orders") is None


def test_a_bigint_does_not_fit_an_integer_column_of_postgres(postgres: Path) -> None:
    shop = Shop(f"postgresql://ottla@/postgres?host={postgres}")
    shop.execute("drop schema public cascade", "create schema public", "create table orders (id integer, item text)")
    with pytest.raises(OttlaError, match="column id is bigint in the query and integer in table orders"):
        shop.prepare()


@pytest.mark.parametrize(
    ("options", "cause", "hint"),
    [
        ({"table": "t"}, "needs the option url", "sqlite:///"),
        ({"url": "sqlite:///a.db"}, "needs the option table", "name"),
        ({"url": "sqlite:///a.db", "tabel": "t"}, "has no option tabel", "Did you mean table?"),
        ({"url": "sqlite:a.db", "table": "t"}, "has no file path", "four slashes"),
        ({"url": "sqlite:///:memory:", "table": "t"}, "only one process", "Use a file"),
        ({"url": "postgre://ann:secret@h/d", "table": "t"}, "postgre://ann:***@h/d", "Did you mean postgresql?"),
        ({"url": "sqlite:///a.db", "table": "t; drop"}, "'t; drop' is not a valid table name", "letters"),
        (
            {"url": "sqlite:///a.db", "table": "t", "delivery": "exactlyonce"},
            "delivery is 'exactlyonce'",
            "exactly-once?",
        ),
        ({"url": "sqlite:///a.db", "table": "t", "upsertKeys": "a,a"}, "contains a column twice", "once"),
        ({"url": "sqlite:///a.db", "table": "t", "sinkId": "s"}, "only one of sinkId and batchId", "foreachBatch"),
        ({"url": "sqlite:///a.db", "table": "t", "sinkId": "s", "batchId": "x"}, "batchId is 'x'", "foreachBatch"),
        ({"url": "sqlite:///a.db", "table": "t", "busyTimeoutMs": "1s"}, "busyTimeoutMs is '1s'", "whole number"),
    ],
)
def test_invalid_options_are_refused_with_a_hint(options: dict[str, str], cause: str, hint: str) -> None:
    with pytest.raises(OttlaError) as refused:
        DatabaseOptions.parse(options)
    assert cause in refused.value.message
    assert hint in refused.value.hint


def test_an_unreachable_database_is_named_without_its_password(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/none/a.db", "postgresql://ann:secret@127.0.0.1:1/shop?connect_timeout=2"):
        with pytest.raises(OttlaError, match=r"cannot (open|connect)") as refused:
            connect(DatabaseOptions.parse({"url": url, "table": "t"}))
        assert "secret" not in refused.value.message
        assert refused.value.hint


def test_both_databases_implement_the_protocol() -> None:
    from ottla.spark.database.connections import PostgresDatabase, SqliteDatabase

    wanted = {name for name in vars(Database) if not name.startswith("_") and callable(vars(Database)[name])}
    assert all(callable(getattr(kind, name)) for kind in (SqliteDatabase, PostgresDatabase) for name in wanted)


def test_a_table_with_a_long_name_is_found_by_the_next_batch(shop: Shop) -> None:
    """PostgreSQL truncates names to 63 bytes, and the staging table's name is longer than the target's."""
    name = "orders_of_all_the_shops_in_all_the_towns_of_the_country"
    for batch_id in range(2):
        target = shop.prepare(table=name)
        shop.move(target, batch_id, {"a": shop.stage(target, batch_id, "a", [(batch_id, "tea")])})
    assert shop.rows(name) == [(0, "tea"), (1, "tea")]


def test_names_that_postgresql_would_truncate_are_refused(postgres: Path) -> None:
    """Two names that differ only after the 63rd byte would be the same table or column."""
    shop = Shop(f"postgresql://ottla@/postgres?host={postgres}")
    with pytest.raises(OttlaError, match=r"the name of table o{64} has 64 bytes; PostgreSQL allows 63"):
        shop.prepare(table="o" * 64)
    with pytest.raises(OttlaError, match=r"the name of table s{64}.orders has"):
        shop.prepare(table=f"{'s' * 64}.orders")
    assert shop.prepare(table="o" * 63).table == "o" * 63

    long = StructType([StructField("id", LongType()), StructField("ä" * 32, StringType())])
    for table in ("not_there_yet", "o" * 63):
        with pytest.raises(OttlaError, match=r"the name of column ä{32} has 64 bytes; PostgreSQL allows 63") as refused:
            shop.prepare(long, table=table)
        assert "with `as`" in refused.value.hint
