"""Contradictions in a pipeline's file: ambiguous settings, and settings that would be ignored."""

from pathlib import Path
from textwrap import dedent

import pytest

from ottla.errors import OttlaError
from ottla.pipeline.definition.loading import load
from ottla.pipeline.definition.problems import PipelineError

GOOD = """
source: {topic: orders, schema: id bigint}
sql: select * from orders
sink: {topic: results}
"""
TABLE = GOOD.replace("{topic: results}", "{url: 'sqlite:///a.db', table: t}")


def problems(tmp_path: Path, text: str, name: str = "shop.yaml") -> list[str]:
    path = tmp_path / name
    path.write_text(dedent(text))
    with pytest.raises(PipelineError) as refused:
        load(path)
    return [f"{str(p).removeprefix(str(tmp_path) + '/')} ({p.hint})" for p in refused.value.problems]


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("topic: elsewhere", "topic"),
        ("Delivery: at-least-once", "guarantee"),
        ("kafka.bootstrap.servers: 'b:1'", "bootstrap"),
        ("checkpointLocation: cp", "checkpoint"),
        ("outputMode: update", "output_mode"),
    ],
)
def test_options_with_their_own_key_are_refused(tmp_path: Path, option: str, key: str) -> None:
    """Otherwise the pipeline would do one thing and show another."""
    name = option.partition(":")[0]
    found = problems(tmp_path, GOOD.replace("results}", f"results, options: {{{option}}}}}"))
    expected = f"sink.options.{name}: this option has its own key: {key} (Use {key} instead.)"
    assert found == [f"shop.yaml:4: {expected}"]


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("url: 'sqlite:///b.db'", "url"),
        ("table: u", "table"),
        ("upsertKeys: id", "upsert_keys"),
        ("delivery: at-least-once", "guarantee"),
    ],
)
def test_options_of_a_table_with_their_own_key_are_refused(tmp_path: Path, option: str, key: str) -> None:
    (found,) = problems(tmp_path, TABLE.replace("table: t}", f"table: t, options: {{{option}}}}}"))
    assert f"this option has its own key: {key}" in found


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("subscribe: b", "topic or topics"),
        ("subscribepattern: b.*", "pattern"),
        ("assign: '{}'", "topic or topics"),
        ("startingOffsets: latest", "starting_offsets"),
        ("kafka.group.id: mine", "name"),
        ("kafka.bootstrap.servers: 'b:1'", "bootstrap"),
    ],
)
def test_options_of_a_source_with_their_own_key_are_refused(tmp_path: Path, option: str, key: str) -> None:
    (found,) = problems(tmp_path, GOOD.replace("id bigint}", f"id bigint, options: {{{option}}}}}"))
    assert f"this option has its own key: {key}" in found


def test_a_starting_timestamp_is_allowed_unless_offsets_are_set(tmp_path: Path) -> None:
    begin = GOOD.replace("id bigint}", "id bigint, options: {startingTimestamp: 5}}")
    path = tmp_path / "shop.yaml"
    path.write_text(begin)
    assert load(path).sources["orders"].options == {"startingTimestamp": "5"}
    (found,) = problems(tmp_path, begin.replace("options", "starting_offsets: latest, options"))
    assert "starting_offsets" in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "kafka: {group.id: mine}\n", "kafka.group.id: this option has its own key: name"),
        (GOOD + "kafka: {bootstrap.servers: 'b:1'}\n", "kafka.bootstrap.servers: this option has its own key"),
        (
            GOOD.replace("id bigint}", "id bigint, options: {endingOffsets: latest}}"),
            "endingOffsets is not for streaming queries",
        ),
        (
            "sources: {a: x, A: y}\nsql: select * from a\nsink: t\n",
            "shop.yaml:1: sources.A: is the same name in SQL as a (Rename one of them.)",
        ),
        (
            "source: a\ntables: {A: a.csv}\nsql: select * from a\nsink: t\n",
            "shop.yaml:2: tables.A: is the same name in SQL as a (Rename one of them.)",
        ),
        ("source: a\ntables: {a: a.csv}\nsql: select * from a\nsink: t\n", "tables.a: a source has this name too"),
        (
            "source: orders\nsql: select * from orders\nsink: orders\n",
            "shop.yaml:3: sink: its topic orders is also a source: the pipeline would read its own output",
        ),
        ("source: {pattern: 'ord.*', name: o}\nsql: select * from o\nsink: orders\n", "is also a source"),
        (
            "sources: {a: x, b: y}\noutputs:\n  one: {sql: select * from A, sink: x}\n",
            "shop.yaml:3: outputs.one.sink: its topic x is also a source",
        ),
        (
            GOOD.replace("id bigint}", "id bigint, on_bad_record: dead-letter, dead_letter_topic: results}"),
            "sink: its topic results is also the dead_letter_topic of orders (Use another topic.)",
        ),
        (
            GOOD + "spark: {spark.speculation: true}\n",
            "shop.yaml:5: spark.spark.speculation: exactly-once into a topic does not work with speculation",
        ),
    ],
)
def test_a_contradiction_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    found = problems(tmp_path, text)
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize(
    "text",
    [
        GOOD + "spark: {spark.speculation: true}\nguarantee: at-least-once\n",
        TABLE + "spark: {spark.speculation: true}\n",
        # One output may read what another one writes.
        "sources: {raw: raw, clean: clean}\noutputs:\n"
        "  first: {sql: select * from raw, sink: clean}\n  second: {sql: select * from clean, sink: t}\n",
    ],
)
def test_similar_files_without_a_contradiction_are_accepted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(text)
    load(path)


def test_a_file_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_bytes(b"name: shop\ndescription: caf\xe9\n")
    with pytest.raises(PipelineError, match=r"shop\.yaml:2: this is not UTF-8: byte 0xe9"):
        load(path)
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load(path).name == "shop", "some editors write a byte order mark"
    (tmp_path / "a.yaml").mkdir()
    with pytest.raises(OttlaError, match=r"a\.yaml cannot be read: Is a directory"):
        load(tmp_path / "a.yaml")


TWO = """\
from ottla.pipeline import pipeline, topic

@pipeline(source=topic("orders"), sink=topic("a"), name="one")
def first(orders):
    return orders

@pipeline(source=topic("orders"), sink=topic("b"))
def second(orders):
    return orders
"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("def second", "def one", "shop.py:7: one: another function of this file has this name (Rename one of them.)"),
        ("def second", "def first", "shop.py:7: first: another function of this file has this name"),
        ('source=topic("orders"), sink=topic("b")', 'source=5, sink=topic("b")', "shop.py:7: source: is 5; it must"),
        ('source=topic("orders"), sink=topic("b")', 'sources=5, sink=topic("b")', "shop.py:7: sources: is 5; it must"),
        ('sink=topic("b")', 'sink=topic("b"), tables=5', "shop.py:7: tables: is 5; it must be a dict"),
        ('sink=topic("b")', 'sink=topic("b"), sources={"a": "b"}', "source and sources cannot be combined"),
        (
            '@pipeline(source=topic("orders"), sink=topic("b"))',
            "@pipeline",
            "shop.py:7: @pipeline has no source and no sink (Use @pipeline(source=",
        ),
        ("def second(orders):\n    return orders", "class Second:\n    pass", "shop.py:7: @pipeline decorates <class"),
        (
            "from ottla",
            "import sys\nsys.exit(3)\nfrom ottla",
            "shop.py:2: the file calls sys.exit(3) (Put code that runs as a script under if __name__",
        ),
    ],
)
def test_a_mistake_in_python_is_reported_with_its_line(tmp_path: Path, before: str, after: str, expected: str) -> None:
    assert before in TWO
    found = problems(tmp_path, TWO.replace(before, after), name="shop.py")
    assert any(expected in problem for problem in found), found


def test_a_second_name_for_a_function_is_not_a_second_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "shop.py"
    path.write_text(TWO + "\nmain = second\n")
    assert list(load(path).outputs) == ["one", "second"]


@pytest.mark.parametrize(
    "line", ['f.udf("string")(len)', 'f.udf(len, returnType="int")', 'TOTAL = f.col("id") * 2', "ONE = f.lit(1)"]
)
def test_module_level_code_that_needs_spark_is_refused(tmp_path: Path, line: str) -> None:
    pytest.importorskip("pyspark")
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        pytest.skip("a session of another test is running")
    (found,) = problems(tmp_path, f"from pyspark.sql import functions as f\n{line}\n{TWO}", name="shop.py")
    assert found.startswith(
        "shop.py:2: Spark is not running yet when the file is read: create columns and UDFs inside the"
    )
    assert "StringType()" in found
