"""Pipelines on Spark: UDFs with functions of the file, timestamps of results, and what validate finds."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from ottla import Admin, Consumer, Producer
from ottla.pipeline.definition.loading import load
from ottla.pipeline.running.checking import check
from ottla.pipeline.running.frames import Frames
from ottla.pipeline.running.queries import Queries
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def modules_as_before() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in [name for name in sys.modules if name.startswith(("ottla_pipeline_file_", "shop_words"))]:
        if name not in before:
            del sys.modules[name]


class Shop:
    """Two topics with one partition each, and a directory for the pipeline between them."""

    def __init__(self, spark: "SparkSession", bootstrap: str, prefix: str, directory: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.orders, self.results = f"{prefix}.orders", f"{prefix}.results"
        self.directory = directory
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.create_topic(self.orders, partitions=1)
            admin.create_topic(self.results, partitions=1)

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(dedent(text).replace("ORDERS", self.orders).replace("RESULTS", self.results))
        return path

    def send(self, *values: bytes, timestamp: int | None = None) -> None:
        with Producer({"bootstrap.servers": self.bootstrap}) as producer:
            for value in values:
                producer.send(self.orders, value, timestamp=timestamp)

    def run(self, path: Path) -> list[Any]:
        """Processes the available records and returns the results."""
        queries = Queries(Frames(self.spark, load(path), self.bootstrap), once=True)
        queries.start()
        queries.watch(lambda batch: None, threading.Event())
        with Consumer({"bootstrap.servers": self.bootstrap, "isolation.level": "read_committed"}) as consumer:
            consumer.assign([(self.results, 0)])
            consumer.seek_to_beginning()
            (end,) = consumer.end_offsets(consumer.assignment()).values()
            found: list[Any] = []

            def is_at_the_end() -> bool:
                found.extend(consumer.poll(200))
                return consumer.position((self.results, 0)) >= end

            eventually(is_at_the_end)
            return found

    def problems(self, path: Path) -> dict[str, str]:
        return {problem.key: f"{problem.cause} ({problem.hint})" for problem in check(self.spark, load(path), None)}


@pytest.fixture
def shop(spark: "SparkSession", broker: Any, topic: str, tmp_path: Path) -> Shop:
    return Shop(spark, broker.bootstrap, topic, tmp_path)


def test_functions_of_the_file_and_of_modules_next_to_it_work_in_a_udf(shop: Shop) -> None:
    """Spec: F4. The file and modules next to it are not installed on the workers."""
    shop.write("shop_words.py", "MARK = '!'\n\ndef loud(text):\n    return text.upper() + MARK\n")
    path = shop.write(
        "shop.py",
        """
        import shop_words
        from ottla.pipeline import pipeline, topic
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType
        from shop_words import loud

        GREETING = "a"

        def greeted(text):
            return f"{GREETING} {loud(text)}{shop_words.MARK}"

        @f.udf(StringType())
        def at_the_top(text):
            return greeted(text)

        @pipeline(source=topic("ORDERS", name="orders", schema="item string"), sink=topic("RESULTS"))
        def greetings(orders):
            within = f.udf(greeted, "string")
            return orders.select(at_the_top("item").alias("first"), within("item").alias("second"))
        """,
    )
    shop.send(b'{"item": "fig"}')
    (record,) = shop.run(path)
    assert json.loads(record.value) == {"first": "a FIG!!", "second": "a FIG!!"}


def test_a_result_in_kafkas_columns_keeps_its_timestamps(shop: Shop) -> None:
    sql = "select value, timestamp - interval 1 second as timestamp from orders"
    path = shop.write("shop.yaml", f"source: {{topic: ORDERS, name: orders}}\nsql: {sql}\nsink: {{topic: RESULTS}}\n")
    shop.send(b"a", timestamp=1_767_225_600_000)
    assert shop.problems(path) == {}
    (record,) = shop.run(path)
    assert (record.value, record.timestamp) == (b"a", 1_767_225_599_000)


def test_anything_after_the_json_object_makes_a_record_bad(shop: Shop) -> None:
    """Spark's parser reads one object and silently drops the rest."""
    path = shop.write(
        "shop.yaml",
        """
        source: {topic: ORDERS, name: orders, schema: "id bigint, item string", on_bad_record: skip}
        sql: select id, item from orders
        sink: {topic: RESULTS}
        """,
    )
    good = [b'{"id": 1}', b' {"id": 2, "item": "a]b,}"}\n', b'{"item": {"id": 1}, "id": 3, "more": [{}]}', b"{}"]
    bad = [b'{"id": 4} {"id": 5}', b'{"id": 6} garbage', b'{"id": 7}, {"id": 8}', b'{"id": 9}}', b'{"id": 10}]', b'""']
    shop.send(*good, *bad)
    assert [json.loads(record.value) for record in shop.run(path)] == [
        {"id": 1, "item": None},
        {"id": 2, "item": "a]b,}"},
        {"id": 3, "item": '{"id":1}'},
        {"id": None, "item": None},
    ]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("1 as key, item as value", "column key has type int; it must be string or binary (Cast it"),
        ("'x' as partition, item as value", "column partition has type string"),
        ("'x' as headers, item as value", "column headers has type string"),
        ("'x' as timestamp, item as value", "column timestamp has type string"),
    ],
)
def test_validate_checks_the_types_of_a_topics_columns(shop: Shop, columns: str, expected: str) -> None:
    path = shop.write(
        "shop.yaml",
        f"""
        source: {{topic: ORDERS, name: orders, schema: item string}}
        sql: select {columns} from orders
        sink: {{topic: RESULTS}}
        """,
    )
    assert expected in shop.problems(path)["sink"]


def test_validate_creates_no_database(shop: Shop) -> None:
    text = """
        source: {topic: ORDERS, name: orders, schema: item string}
        sql: select item from orders
        sink: {url: 'sqlite:///shop.db', table: items}
        """
    path = shop.write("shop.yaml", text)
    assert shop.problems(path) == {}
    assert not (shop.directory / "shop.db").exists()
    odd = shop.write("shop.yaml", text.replace("select item", "select interval 1 day as item"))
    assert "item" in shop.problems(odd)["sink"]
    lost = shop.write("shop.yaml", text.replace("///shop.db", "///nowhere/shop.db"))
    assert "nowhere of sqlite:///" in shop.problems(lost)["sink"]
    assert not (shop.directory / "nowhere").exists()
