"""`ottla pipeline status` of queries: their guarantees and their lag."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from ottla import Admin, Producer
from ottla.pipeline.definition.loading import load
from ottla.pipeline.running.status import QueryStatus, status_of
from ottla.types import TopicPartition


class Shop:
    """Topics for one test, and a pipeline that runs elsewhere: only its group offsets are visible."""

    def __init__(self, bootstrap: str, prefix: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.directory = directory

    def fill(self, **counts: int) -> None:
        with (
            Admin(bootstrap_servers=self.bootstrap) as admin,
            Producer(bootstrap_servers=self.bootstrap) as producer,
        ):
            for name, count in counts.items():
                admin.create_topic(f"{self.prefix}.{name}", partitions=1)
                for number in range(count):
                    producer.send(f"{self.prefix}.{name}", str(number))

    def commit(self, group: str, **offsets: int) -> None:
        places = {TopicPartition(f"{self.prefix}.{name}", 0): offset for name, offset in offsets.items()}
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.alter_group_offsets(group.replace("PREFIX", self.prefix), places)

    def look(self, text: str) -> dict[str, QueryStatus]:
        path = self.directory / "shop.yaml"
        path.write_text(dedent(text).replace("PREFIX", self.prefix))
        status = status_of(load(path), self.bootstrap)
        assert not status.notes
        return {query.name: query for query in status.queries}

    def lag(self, query: QueryStatus) -> dict[str, int | None]:
        return {topic.removeprefix(f"{self.prefix}."): lag for topic, lag in query.lag.items()}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout for users is short; the brokers of tests may be slow."""
    monkeypatch.setattr(
        "ottla.pipeline.running.status.admin_settings", lambda bootstrap, _: {"bootstrap.servers": bootstrap}
    )


@pytest.fixture
def shop(broker: Any, topic: str, tmp_path: Path) -> Shop:
    return Shop(broker.bootstrap, topic, tmp_path)


PATTERN = """
    name: PREFIX-all
    source: {pattern: 'PREFIX[.]in.*', name: orders}
    sql: select * from orders
    sink: PREFIX.out
"""


def test_topics_that_match_a_pattern_have_a_lag_too(shop: Shop) -> None:
    shop.fill(in1=5, in2=3, other=9)
    (query,) = shop.look(PATTERN).values()
    assert shop.lag(query) == {"in1": 5, "in2": 3}, "before the query has begun"
    shop.commit("PREFIX-all", in1=4)
    (query,) = shop.look(PATTERN).values()
    assert shop.lag(query) == {"in1": 1, "in2": 3}, "a new topic is unread as a whole"


TWO = """
    name: PREFIX-two
    guarantee: at-least-once
    sources:
      orders: {topic: PREFIX.orders, schema: id bigint, on_bad_record: dead-letter, dead_letter_topic: PREFIX.bad}
      paid: {topic: PREFIX.paid}
    outputs:
      first: {sql: select * from orders, sink: PREFIX.first}
      second: {sql: select * from paid, sink: PREFIX.second}
"""


def test_the_lag_of_a_query_covers_only_the_topics_it_reads(shop: Shop) -> None:
    shop.fill(orders=5, paid=3)
    shop.commit("PREFIX-two.first", orders=1)
    shop.commit("PREFIX-two.second", paid=1)
    seen = shop.look(TWO)
    assert {name: shop.lag(query) for name, query in seen.items()} == {
        "first": {"orders": 4},
        "second": {"paid": 2},
        "dead-letter.orders": {"orders": 5},
    }


def test_the_dead_letter_query_has_the_guarantee_of_the_outputs(shop: Shop) -> None:
    shop.fill(orders=0, paid=0)
    assert {query.guarantee for query in shop.look(TWO).values()} == {"at-least-once"}
    mixed = shop.look(TWO.replace("sink: PREFIX.first", "sink: PREFIX.first, guarantee: exactly-once"))
    assert {name: query.guarantee for name, query in mixed.items()} == {
        "first": "exactly-once",
        "second": "at-least-once",
        "dead-letter.orders": "exactly-once",
    }
