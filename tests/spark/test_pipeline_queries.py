"""Pipelines on Spark: good and bad records, joins, updates, restarts, and what validate finds."""

import contextlib
import json
import threading
from decimal import Decimal
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from ottla import Admin, Consumer, Producer
from ottla.pipeline.definition.loading import load
from ottla.pipeline.definition.model import Pipeline
from ottla.pipeline.running.bad_records import bad_column, is_bad, parsed
from ottla.pipeline.running.checking import check
from ottla.pipeline.running.failures import failure_of
from ottla.pipeline.running.frames import Frames
from ottla.pipeline.running.progress import Batch
from ottla.pipeline.running.queries import Queries
from ottla.spark.database.connections import connect
from ottla.spark.database.options import DatabaseOptions
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipelines" / "revenue.yaml"


class Shop:
    """A broker with topics for one test, and a directory for its pipelines."""

    def __init__(self, bootstrap: str, prefix: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.directory = directory

    def topic(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def create(self, *names: str) -> None:
        with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            for name in names:
                admin.create_topic(self.topic(name), partitions=2)

    def send(self, name: str, values: list[Any]) -> None:
        with Producer({"bootstrap.servers": self.bootstrap}) as producer:
            for value in values:
                text = value if isinstance(value, bytes | None) else json.dumps(value).encode()
                producer.send(self.topic(name), text, partition=0)

    def read(self, name: str) -> list[Any]:
        """All committed records of a topic."""
        with Consumer({"bootstrap.servers": self.bootstrap, "isolation.level": "read_committed"}) as consumer:
            partitions = [(self.topic(name), index) for index in (0, 1)]
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(consumer.assignment())
            found: list[Any] = []

            def is_at_the_end() -> bool:
                found.extend(consumer.poll(200))
                return all(consumer.position(partition) >= end for partition, end in ends.items())

            eventually(is_at_the_end)
            return found

    def pipeline(self, text: str) -> Pipeline:
        path = self.directory / "shop.yaml"
        path.write_text(dedent(text).replace("PREFIX", self.prefix))
        return load(path)


@pytest.fixture
def shop(broker: Any, topic: str, tmp_path: Path) -> Shop:
    return Shop(broker.bootstrap, topic, tmp_path)


def run(spark: "SparkSession", made: Pipeline, bootstrap: str) -> list[Batch]:
    """Processes the available records and returns the batches."""
    batches: list[Batch] = []
    queries = Queries(Frames(spark, made, bootstrap), once=True)
    queries.start()
    queries.watch(batches.append, threading.Event())
    return batches


POLICY = """
    source:
      topic: PREFIX.orders
      name: orders
      schema: id bigint, item string
      metadata: true
      on_bad_record: POLICY
    sql: select id, upper(item) as item, _offset from orders
    sink: {topic: PREFIX.results, key: item}
"""
MIXED = [
    {"id": 1, "item": "fig"},
    b"{half",
    {"id": "x", "item": "pear"},
    None,
    {"id": 2},
    b"[]",
    {"id": 3, "item": "nut"},
]


def test_bad_records_are_skipped_and_counted(spark: "SparkSession", shop: Shop) -> None:
    """Spec: F4. A missing field is null. A value that is missing, is not JSON or has a field of another type is bad."""
    shop.create("orders", "results")
    shop.send("orders", MIXED)
    batches = run(spark, shop.pipeline(POLICY.replace("POLICY", "skip")), shop.bootstrap)
    assert [(batch.rows_in, batch.rows_out, batch.bad) for batch in batches] == [(7, 3, {"orders": 4})]
    results = shop.read("results")
    assert sorted(json.loads(record.value)["id"] for record in results) == [1, 2, 3]
    (fig,) = [record for record in results if record.key == b"FIG"]
    assert json.loads(fig.value) == {"id": 1, "item": "FIG", "_offset": 0}


def test_text_after_the_json_object_is_not_silently_dropped(spark: "SparkSession", shop: Shop) -> None:
    """Spark's from_json would parse the first object of each value and silently ignore the rest."""
    shop.create("orders", "results")
    tails = [b"}", b"]", b" junk", b'{"id": 2}', b',{"id": 2}', b',"item": 2', b",", b",null"]
    shop.send("orders", [b'{"id": 1}' + tail for tail in tails] + [b' {"id": 3} \n'])
    (batch,) = run(spark, shop.pipeline(POLICY.replace("POLICY", "skip")), shop.bootstrap)
    assert (batch.rows_in, batch.rows_out, batch.bad) == (len(tails) + 1, 1, {"orders": len(tails)})
    assert [json.loads(record.value)["id"] for record in shop.read("results")] == [3]


def test_bad_records_are_written_to_the_dead_letter_topic_with_the_reason(spark: "SparkSession", shop: Shop) -> None:
    """Unchanged, with their headers and timestamps, and with the column and the reason in more headers."""
    shop.create("orders", "results", "bad")
    shop.send("orders", MIXED)
    with Producer({"bootstrap.servers": shop.bootstrap}) as producer:
        producer.send(
            shop.topic("orders"), b'{"id": 4} junk', key=b"k", headers=[("trace", b"7")], timestamp=1_700_000_000_123
        )
    made = shop.pipeline(POLICY.replace("POLICY", "dead-letter\n      dead_letter_topic: PREFIX.bad"))
    run(spark, made, shop.bootstrap)
    run(spark, made, shop.bootstrap)
    bad = {record.value: record for record in shop.read("bad")}
    assert len(shop.read("bad")) == len(bad) == 5, "each once"
    headers = {value: dict(record.headers) for value, record in bad.items()}
    assert headers[b"{half"]["ottla.topic"] == shop.topic("orders").encode()
    assert headers[b"{half"]["ottla.offset"] == b"1"
    assert {value: found["ottla.error"].decode() for value, found in headers.items()} == {
        None: "it has no value",
        b"[]": "its value is not a JSON object: []",
        b"{half": "its value is not a JSON object: {half",
        b'{"id": "x", "item": "pear"}': 'column id is not bigint: x in {"id": "x", "item": "pear"}',
        b'{"id": 4} junk': 'its value is not exactly one JSON object: {"id": 4} junk',
    }
    assert headers[b'{"id": "x", "item": "pear"}']["ottla.column"] == b"id"
    assert headers[b"{half"]["ottla.column"] is None
    junk = bad[b'{"id": 4} junk']
    assert (junk.key, junk.timestamp, junk.headers[0]) == (b"k", 1_700_000_000_123, ("trace", b"7"))
    assert len(shop.read("results")) == 3


def test_the_first_wrong_column_is_named_whatever_its_type(spark: "SparkSession") -> None:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL("id bigint, item string, at timestamp, n struct<a int, s string>, l array<int>")
    assert isinstance(schema, StructType)
    wrong = {
        '{"id": 1.0}': "id",
        '{"item": 5, "at": "soon"}': "at",
        '{"n": {"a": "x", "s": "y"}}': "n",
        '{"n": 5}': "n",
        '{"l": [1, "x"]}': "l",
        '{"id": 1}]': None,
    }
    good = ['{"item": 5}', '{"item": {"a": [1]}}', '{"id": null}', '{"ID": "x"}', '{"at": 5}']
    frame = spark.createDataFrame([(text.encode(),) for text in (*wrong, *good)], "value binary")
    rows = parsed(frame, schema).select(f.col("value").cast("string"), is_bad(), f.when(is_bad(), bad_column(schema)))
    found = {text: (bad, column) for text, bad, column in rows.collect()}
    assert found == {text: (True, column) for text, column in wrong.items()} | dict.fromkeys(good, (False, None))


def test_a_bad_record_stops_the_pipeline_with_policy_fail(spark: "SparkSession", shop: Shop) -> None:
    shop.create("orders", "results")
    shop.send("orders", MIXED)
    with pytest.raises(Exception, match="bad record") as stopped:
        run(spark, shop.pipeline(POLICY.replace("POLICY", "fail")), shop.bootstrap)
    failure = failure_of(stopped.value)
    assert failure.cause.startswith(f"bad record in {shop.topic('orders')}-0 at offset 1: its value is not a JSON")
    assert "on_bad_record" in failure.hint
    assert not failure.retriable
    assert shop.read("results") == []


def test_streams_are_joined_and_a_table_is_updated_with_their_sums(spark: "SparkSession", shop: Shop) -> None:
    """Spec: F4. Several sources; output mode update into a database, rows and progress in one transaction."""
    shop.create("orders", "paid")
    shop.send("orders", [{"id": n, "item": "fig" if n % 2 else "pear"} for n in range(10)])
    shop.send("paid", [{"order_id": n, "amount": n} for n in range(8)])
    url = f"sqlite:///{shop.directory}/shop.db"
    made = shop.pipeline(
        f"""
        sources:
          orders: {{topic: PREFIX.orders, schema: "id bigint, item string"}}
          paid: {{topic: PREFIX.paid, schema: "order_id bigint, amount bigint"}}
        outputs:
          pairs:
            sql: select id, item, amount from orders join paid on id = order_id
            sink: {{url: '{url}', table: pairs}}
          sums:
            sql: select order_id % 2 as odd, sum(amount) as total from paid group by 1
            sink: {{url: '{url}', table: sums, upsert_keys: odd}}
            output_mode: update
        spark: {{spark.sql.shuffle.partitions: 2}}
        """
    )
    run(spark, made, shop.bootstrap)
    shop.send("paid", [{"order_id": 8, "amount": 100}, {"order_id": 9, "amount": 200}])
    run(spark, made, shop.bootstrap)
    with contextlib.closing(connect(DatabaseOptions.parse({"url": url, "table": "pairs"}))) as database:
        assert database.query("select count(*), count(distinct id), sum(amount) from pairs") == [(10, 10, 328)]
        assert database.query("select odd, total from sums order by odd") == [(0, 112), (1, 216)]
        ledger = database.query("select target, positions from ottla_ledger order by target")
    assert [target for target, _ in ledger] == ["pairs", "sums"]
    assert all(shop.topic("paid") in positions for _, positions in ledger), (
        "the progress is written in the same transaction"
    )


def test_sums_are_written_to_a_topic_in_every_output_mode(spark: "SparkSession", shop: Shop) -> None:
    """Spec: F4. A batch that Spark repeats adds nothing."""
    shop.create("orders", "changes", "whole")
    shop.send("orders", [{"item": "fig"}, {"item": "fig"}, {"item": "pear"}])
    made = shop.pipeline(
        """
        source: {topic: PREFIX.orders, name: orders, schema: item string}
        outputs:
          changes:
            sql: select item, count(*) as n from orders group by item
            sink: {topic: PREFIX.changes, key: item}
            output_mode: update
          whole:
            sql: select item, count(*) as n from orders group by item
            sink: {topic: PREFIX.whole, key: item}
            output_mode: complete
        """
    )
    assert check(spark, made, shop.bootstrap) == []
    batches = run(spark, made, shop.bootstrap)
    assert sorted((batch.query, batch.rows_out) for batch in batches) == [("changes", 2), ("whole", 2)]
    for name in made.outputs:
        forget_commit(Path(made.checkpoint) / name, 0)
    shop.send("orders", [{"item": "fig"}])
    run(spark, made, shop.bootstrap)

    def counts(name: str) -> list[tuple[bytes, int]]:
        return sorted((record.key, json.loads(record.value)["n"]) for record in shop.read(name))

    assert counts("changes") == [(b"fig", 2), (b"fig", 3), (b"pear", 1)]
    assert counts("whole") == [(b"fig", 2), (b"fig", 3), (b"pear", 1), (b"pear", 1)]


def forget_commit(checkpoint: Path, batch: int) -> None:
    """As if the driver had died after the sink committed the batch and before Spark's commit log had it."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_a_pipeline_keeps_a_table_of_postgresql_up_to_date(spark: "SparkSession", shop: Shop, postgres: Path) -> None:
    """Spec: F4. The sums are correct although Spark repeats a batch."""
    shop.create("orders")
    shop.send("orders", [{"id": n, "item": "fig" if n % 2 else "pear", "price": n / 4} for n in range(10)])
    url = f"postgresql://ottla@/postgres?host={postgres}"
    made = shop.pipeline(
        f"""
        source: {{topic: PREFIX.orders, name: orders, schema: "id bigint, item string, price decimal(10, 2)"}}
        sql: select item, count(*) as n, sum(price) as total from orders group by item
        sink: {{url: '{url}', table: sums, upsert_keys: item}}
        output_mode: update
        """
    )
    assert check(spark, made, shop.bootstrap) == []
    run(spark, made, shop.bootstrap)
    forget_commit(Path(made.checkpoint) / "shop", 0)
    shop.send("orders", [{"id": 10, "item": "fig", "price": 100}])
    run(spark, made, shop.bootstrap)
    with contextlib.closing(connect(DatabaseOptions.parse({"url": url, "table": "sums"}))) as database:
        assert database.query("select item, n, total from sums order by item") == [
            ("fig", 6, Decimal("106.25")),
            ("pear", 5, Decimal("5.00")),
        ]
        assert database.query("select target, batch_id from ottla_ledger") == [("sums", 1)]


def test_the_windows_of_the_example_are_exact_after_a_restart(spark: "SparkSession", shop: Shop) -> None:
    """Spec: F4. A stateful aggregation, stopped and started again, equals the batch answer."""
    shop.create("orders", "revenue")
    made = load(
        EXAMPLE,
        {
            "source.topic": shop.topic("orders"),
            "source.name": "orders",
            "source.on_bad_record": "skip",
            "source.dead_letter_topic": "null",
            "sink.topic": shop.topic("revenue"),
            "checkpoint": str(shop.directory / "checkpoint"),
        },
    )
    prices = {"apple": 50, "pear": 80, "plum": 20, "fig": 125}

    def order(number: int, second: float) -> dict[str, Any]:
        at = f"2026-01-01T{int(second) // 3600:02d}:{int(second) // 60 % 60:02d}:{second % 60:06.3f}Z"
        return {"id": number, "item": list(prices)[number % 4], "quantity": number % 7 + 1, "at": at}

    expected: dict[tuple[str, str], list[int]] = {}
    for number in range(2_000):
        row = order(number, number / 10)
        window = expected.setdefault((row["at"][:16], row["item"]), [0, 0])
        window[0] += 1
        window[1] += row["quantity"] * prices[row["item"]]
    shop.send("orders", [order(number, number / 10) for number in range(1_100)])
    run(spark, made, shop.bootstrap)
    # The last one closes all windows. It is in one batch with the others, so none of them is late.
    shop.send("orders", [*(order(number, number / 10) for number in range(1_100, 2_000)), order(0, 80_000)])
    run(spark, made, shop.bootstrap)
    rows = [json.loads(record.value) for record in shop.read("revenue")]
    found = {(row["minute"][:16], row["item"]): [row["orders"], round(row["revenue"] * 100)] for row in rows}
    assert len(found) == len(rows), "a window was written twice"
    assert found == expected


def test_validate_finds_the_errors_that_spark_would_raise(spark: "SparkSession", shop: Shop) -> None:
    shop.create("orders", "results")
    url = f"sqlite:///{shop.directory}/shop.db"
    with contextlib.closing(connect(DatabaseOptions.parse({"url": url, "table": "t"}))) as database:
        database.execute("create table taken (id text)")
    made = shop.pipeline(
        f"""\
        sources:
          orders:
            topic: PREFIX.orders
            schema: id bigint, item string, at timestamp
            watermark: at 1 minute
          words:
            topic: PREFIX.wrds
            schema: word strng
        outputs:
          column:
            sql: |
              select id,
                     itm
              from orders
            sink: PREFIX.results
          sums:
            sql: select item, count(*) as n from orders group by item
            sink: {{topic: PREFIX.results, key: item}}
          key:
            sql: select item from orders
            sink: {{topic: PREFIX.results, key: nope}}
          table:
            sql: select id from orders
            sink: {{url: '{url}', table: taken}}
          good:
            sql: select window(at, '1 minute').start as m, count(*) as n from orders group by window(at, '1 minute')
            sink: PREFIX.results
        """
    )
    without_words = Pipeline(**{**made.__dict__, "sources": {"orders": made.sources["orders"]}})
    found = {problem.key: (problem.line, problem.cause) for problem in check(spark, without_words, shop.bootstrap)}
    line, cause = found.pop("outputs.column.sql")
    assert line == 13
    assert "itm" in cause
    assert "Did you mean" in cause
    line, cause = found.pop("outputs.sums.sql")
    assert line == 17
    assert "watermark" in cause
    line, cause = found.pop("outputs.key.sink.key")
    assert line == 21
    assert cause == "the result has no column nope; its columns are item"
    line, cause = found.pop("outputs.table.sink")
    assert line == 24
    assert "column id is bigint in the query and TEXT in table taken" in cause
    assert found == {}
    shown = [f"{problem.key}: {problem.cause}" for problem in check(spark, made, shop.bootstrap)]
    assert any(each.startswith("sources.words.schema: 'word strng' is not a list of columns") for each in shown)
    assert f"sources.words: there is no topic {shop.topic('wrds')} at {shop.bootstrap}" in shown


def test_rows_are_routed_by_a_column_and_a_wrong_table_name_has_a_hint(spark: "SparkSession", shop: Shop) -> None:
    shop.create("orders", "eu", "us")
    shop.send("orders", [{"id": 1, "region": "eu"}, {"id": 2, "region": "us"}, {"id": 3, "region": "eu"}])
    text = """
        source: {topic: PREFIX.orders, schema: "id bigint, region string"}
        sql: select id, concat('PREFIX.', region) as destination from TABLE
        sink: {topic_column: destination, key: id}
        """
    made = shop.pipeline(text.replace("TABLE", "`PREFIX.orders`"))
    (problem,) = check(spark, made, shop.bootstrap)
    (table,) = made.sources
    assert problem.cause == f"there is no table {shop.topic('orders')}"
    assert problem.hint.startswith(f"The table of topic {shop.topic('orders')} is named {table}.")
    assert problem.line == 3
    made = shop.pipeline(text.replace("TABLE", table))
    assert check(spark, made, shop.bootstrap) == []
    run(spark, made, shop.bootstrap)
    assert sorted((record.key, record.value) for record in shop.read("eu")) == [
        (b"1", b'{"id":1}'),
        (b"3", b'{"id":3}'),
    ]
    assert [(record.key, record.value) for record in shop.read("us")] == [(b"2", b'{"id":2}')]
    (problem,) = check(
        spark, shop.pipeline(text.replace("TABLE", table).replace("concat('PREFIX.', region)", "id")), None
    )
    assert (problem.key, problem.cause) == (
        "sink.topic_column",
        "column destination has type bigint; it must be string",
    )
