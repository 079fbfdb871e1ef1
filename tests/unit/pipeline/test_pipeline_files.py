"""A pipeline's file, YAML or Python: what it may contain, and how mistakes are reported."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from ottla.errors import OttlaError
from ottla.pipeline.definition.loading import load
from ottla.pipeline.definition.model import DatabaseSink, Pipeline, TopicSink
from ottla.pipeline.definition.options import batch_options, sink_options
from ottla.pipeline.definition.problems import PipelineError

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"
GOOD = """
    source: {topic: orders, schema: id bigint}
    sql: select * from orders
    sink: results
"""


def read(tmp_path: Path, text: str, changes: dict[str, str] | None = None, name: str = "shop.yaml") -> Pipeline:
    path = tmp_path / name
    path.write_text(dedent(text))
    return load(path, changes)


def problems(tmp_path: Path, text: str, **more: Any) -> list[str]:
    with pytest.raises(PipelineError) as refused:
        read(tmp_path, text, **more)
    return [f"{str(p).removeprefix(str(tmp_path) + '/')} ({p.hint})" for p in refused.value.problems]


def test_the_examples_are_read() -> None:
    """Spec: F4. A pipeline is a small Python file or a few lines of YAML."""
    revenue = load(EXAMPLES / "revenue.yaml")
    assert revenue.name == "revenue"
    assert revenue.topics_in == ["orders"]
    assert revenue.topics_out == ["revenue", "orders.bad"]
    assert revenue.sources["orders"].watermark == ("at", "10 seconds")
    assert revenue.outputs["revenue"].trigger == "1 second"
    big = load(EXAMPLES / "big_orders.py")
    sink = big.outputs["big_orders"].sink
    assert isinstance(sink, DatabaseSink)
    assert sink.url == f"sqlite:///{EXAMPLES}/big_orders.db"
    assert sink.upsert_keys == ("id",)
    assert big.outputs["big_orders"].sources == ("orders", "prices")


def test_a_pipeline_needs_only_a_few_lines(tmp_path: Path) -> None:
    made = read(tmp_path, GOOD)
    output = made.outputs["shop"]
    assert made.name == "shop"
    assert output.guarantee == "exactly-once"
    assert output.sink == TopicSink("results")
    assert made.checkpoint == str(tmp_path / "checkpoints" / "shop"), "relative to the file"
    assert made.sources["orders"].starting_offsets == "earliest"
    assert made.group_of("shop") == "shop"


def test_several_sources_tables_and_outputs(tmp_path: Path) -> None:
    made = read(
        tmp_path,
        """
        name: shop
        sources:
          orders: {topics: [orders-eu, orders-us], schema: id bigint}
          payments: payments
        tables:
          items: items.json
        outputs:
          paid: {sql: select 1, sink: {topic: paid, key: [a, b]}}
          table: {sql: select 1, sink: {url: 'postgresql://db/shop', table: t}, guarantee: at-least-once}
        kafka: {client.id: shop, linger.ms: 5}
        trigger: 500 ms
        """,
    )
    assert made.sources["orders"].topics == ("orders-eu", "orders-us")
    assert made.sources["payments"].schema is None
    assert made.tables["items"].format == "json"
    assert made.tables["items"].path == str(tmp_path / "items.json")
    paid, table = made.outputs["paid"], made.outputs["table"]
    assert isinstance(paid.sink, TopicSink)
    assert paid.sink.key == ("a", "b")
    assert paid.trigger == "500 milliseconds"
    assert (paid.guarantee, table.guarantee) == ("exactly-once", "at-least-once")
    assert made.group_of("paid") == "shop.paid"
    assert made.kafka["linger.ms"] == "5"


def test_rows_can_be_routed_by_a_column(tmp_path: Path) -> None:
    made = read(tmp_path, GOOD.replace("sink: results", "sink: {topic_column: to, key: id}"))
    sink = made.outputs["shop"].sink
    assert sink == TopicSink("", ("id",), {}, topic_column="to")
    assert sink.shown == "the topics in column to"
    assert made.topics_out == []
    assert "topic" not in sink_options(made, made.outputs["shop"], "b:1"), "so the column decides"
    (found,) = problems(tmp_path, GOOD.replace("sink: results", "sink: {topic: a, topic_column: to}"))
    assert "topic_column: topic and topic_column cannot be combined" in found


def test_every_mistake_has_its_line_and_a_hint(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """\
        source:
          topc: orders
          schema: id bigint
          on_bad_record: dead_letter
        sql: select 1
        sink: {topic: results, kee: id}
        guarantee: exactly once
        trigger: soon
        outptus: {}
        """,
    )
    assert found == [
        "shop.yaml:9: outptus: unknown key (Did you mean outputs?)",
        "shop.yaml:2: source.topc: unknown key (Did you mean topic?)",
        "shop.yaml:1: source: needs exactly one of topic, topics and pattern (Set one of them.)",
        "shop.yaml:4: source.on_bad_record: is dead_letter (Did you mean dead-letter?)",
        "shop.yaml:7: guarantee: is exactly once (Did you mean exactly-once?)",
        "shop.yaml:6: sink.kee: unknown key (Did you mean key?)",
        "shop.yaml:8: trigger: 'soon' is not a duration (Use a number and a unit, for example 5 seconds.)",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "shop.yaml: the file is empty"),
        ("source: [", "shop.yaml:1: this is not YAML"),
        ("source: a\nsource: b\n", "shop.yaml:2: source: is set twice (Remove one of them.)"),
        ("sql: select 1\nsink: t\n", "there is no source (Add one"),
        ("source: orders\nsink: t\n", "there is no sql (Add the transformation"),
        ("source: orders\nsql: select 1\n", "sink: there is no sink (Add a topic or a table"),
        ("source: or ders\nsql: select 1\nsink: t\n", "'or ders' is not a valid topic name"),
        ("source: orders\nsources: {a: b}\nsql: select 1\nsink: t\n", "source and sources cannot be combined"),
        (
            GOOD + "    output_mode: update\n    guarantee: at-most-once\n",
            "update does not work with guarantee: at-most-once (Use another",
        ),
        (
            GOOD + "    output_mode: complete\n    guarantee: at-most-once\n",
            "complete does not work with guarantee: at-most-once",
        ),
        (GOOD + "    output_mode: changes\n", "output_mode: is changes (Use append, complete or update"),
        (GOOD.replace("results", "{topic: t, options: {batchId: 1}}"), "for writes inside foreachBatch (A stream has"),
        (GOOD.replace("sink: results", "sink: {url: 'sqlite:///a.db'}"), "sink: has no table"),
        (GOOD.replace("sink: results", "sink: {url: 'sqlte:///a.db', table: t}"), "Did you mean sqlite?"),
        (
            GOOD.replace("sink: results", "sink: {url: 'sqlite:///a.db', table: t}") + "    master: spark://h:7077\n",
            "SQLite is a local file",
        ),
        (
            GOOD.replace("sink: results", "sink: {url: 'sqlite:///a.db', table: t}") + "    output_mode: update\n",
            "update needs upsert_keys, to know which rows to replace (Add upsert_keys",
        ),
        (
            GOOD.replace("id bigint}", "id bigint, options: {maxOffsetPerTrigger: 5}}"),
            "unknown option maxoffsetpertrigger of the source ottla (Did you mean maxOffsetsPerTrigger?)",
        ),
        (
            GOOD + "    kafka: {linger.mss: 5}\n",
            "shop.yaml:5: kafka.linger.mss: unknown client setting (Did you mean",
        ),
        (GOOD.replace("id bigint}", "id bigint, watermark: at soon}"), "'soon' is not a duration"),
        (GOOD.replace("id bigint}", "id bigint, watermark: at ٥ s}"), "'٥ s' is not a duration"),
        (GOOD.replace("id bigint}", "id bigint, on_bad_record: dead-letter}"), "dead-letter needs a topic"),
        ("source: {topic: orders, metadata: true}\nsql: select 1\nsink: t\n", "has no effect without schema"),
        ("source: orders\nsql: select 1\nsink: t\nname: 'a b'\n", "'a b' is not a valid pipeline name"),
        ("source: orders\nsql: {a: b}\nsink: t\n", "sql: is a set of keys; it must be text"),
        ("- a\n- b\n", "is a list; it must be keys with values"),
    ],
)
def test_a_mistake_is_reported_with_a_hint(tmp_path: Path, text: str, expected: str) -> None:
    assert any(expected in problem for problem in problems(tmp_path, text)), problems(tmp_path, text)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("mode", ["update", "complete"])
def test_a_topic_supports_every_output_mode(tmp_path: Path, mode: str, guarantee: str) -> None:
    made = read(tmp_path, GOOD + f"    output_mode: {mode}\n    guarantee: {guarantee}\n")
    assert made.outputs["shop"].output_mode == mode


def test_a_write_inside_foreach_batch_gets_sink_and_batch_id(tmp_path: Path) -> None:
    made = read(tmp_path, GOOD + "    output_mode: update\n")
    output = made.outputs["shop"]
    chosen = batch_options(output, sink_options(made, output, "a:1"), "id", 7)
    assert (chosen["sinkName"], chosen["queryId"], chosen["batchId"]) == ("ottla-sink-id", "id", "7")
    named = read(tmp_path, GOOD.replace("results", "{topic: t, options: {sinkname: mine}}"))
    chosen = batch_options(named.outputs["shop"], sink_options(named, named.outputs["shop"], "a:1"), "id", 7)
    assert chosen["sinkName"] == "mine"
    plain = read(tmp_path, GOOD + "    guarantee: at-least-once\n")
    assert "batchId" not in batch_options(
        plain.outputs["shop"], sink_options(plain, plain.outputs["shop"], "a:1"), "id", 7
    )
    table = read(tmp_path, GOOD.replace("results", "{url: 'sqlite:///a.db', table: t}"))
    chosen = batch_options(table.outputs["shop"], sink_options(table, table.outputs["shop"], "a:1"), "id", 7)
    assert (chosen["sinkId"], chosen["batchId"]) == ("id", "7")


def test_set_overrides_values_of_the_file(tmp_path: Path) -> None:
    changes = {
        "source.starting_offsets": "latest",
        "source.options.maxOffsetsPerTrigger": "10",
        "kafka.client.id": "other",
        "checkpoint": "/elsewhere",
    }
    made = read(tmp_path, GOOD, changes)
    source = made.sources["orders"]
    assert source.starting_offsets == "latest"
    assert source.options == {"maxOffsetsPerTrigger": "10"}
    assert made.kafka == {"client.id": "other"}
    assert made.checkpoint == "/elsewhere"
    assert "unknown key" in problems(tmp_path, GOOD, changes={"source.nope": "1"})[0]
    assert "sink has no keys" in problems(tmp_path, GOOD, changes={"sink.topic": "x"})[0]


TWO = """
    from ottla.pipeline import database, pipeline, topic

    ORDERS = topic("orders", schema="id bigint, item string")

    @pipeline(source=ORDERS, sink=topic("items", key="item"))
    def items(orders):
        return orders.select("item")

    @pipeline(sources={"orders": ORDERS, "paid": topic("paid")}, sink=database("sqlite:///a.db", "t"), checkpoint="cp")
    def matched(orders, paid):
        return orders
"""


def test_several_functions_of_a_file_are_outputs_of_one_pipeline(tmp_path: Path) -> None:
    made = read(tmp_path, TWO, name="shop.py")
    assert made.name == "shop"
    assert list(made.outputs) == ["items", "matched"]
    assert made.outputs["items"].sources == ("orders",)
    assert made.outputs["matched"].sources == ("orders", "paid")
    assert made.checkpoint == str(tmp_path / "cp")
    function = made.outputs["items"].function
    assert function is not None
    assert function.__name__ == "items"


def test_functions_of_a_file_may_use_one_name_for_different_sources(tmp_path: Path) -> None:
    text = TWO.replace('sources={"orders": ORDERS, "paid"', 'sources={"orders": topic("orders.eu"), "paid"')
    made = read(
        tmp_path, text.replace("sqlite:", "postgresql:").replace('checkpoint="cp"', 'name="matched-eu"'), name="shop.py"
    )
    assert {name: source.topics for name, source in made.sources.items()} == {
        "orders": ("orders",),
        "orders_matched_eu": ("orders.eu",),
        "paid": ("paid",),
    }
    output = made.outputs["matched-eu"]
    assert output.sources == ("orders_matched_eu", "paid")
    assert output.parameters == ("orders", "paid"), "the function is called with its own names"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("def items(orders)", "def items()", "shop.py:6: items: cannot be called with one DataFrame"),
        ("def matched(orders, paid)", "def matched(orders)", "matched: cannot be called with orders, paid"),
        ('key="item"', 'kee="item"', "shop.py:6: outputs.items.sink.kee: unknown key (Did you mean key?)"),
        ("return orders.select", "retrun orders.select", "shop.py:8: syntax error"),
        ("ORDERS = topic", "ORDERS = tpic", "shop.py:4: NameError: name 'tpic' is not defined"),
    ],
)
def test_a_mistake_in_python_has_its_line(tmp_path: Path, before: str, after: str, expected: str) -> None:
    assert before in TWO
    found = problems(tmp_path, TWO.replace(before, after), name="shop.py")
    assert any(expected in problem for problem in found), found


def test_a_file_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    assert "no function has the decorator" in problems(tmp_path, "x = 1\n", name="shop.py")[0]
    with pytest.raises(OttlaError, match="does not exist"):
        load(tmp_path / "none.yaml")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(OttlaError, match="neither YAML nor Python"):
        load(tmp_path / "a.txt")
