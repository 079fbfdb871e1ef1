"""The listings of docs/arrow.md run as they are, and examples/arrow.py does what it says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla import Admin, Broker, Consumer, Producer
from tests.support.processes.crashing import load_example
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with Broker.embedded(settings={"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


def read(bootstrap: str, topic: str, rows: int) -> dict[bytes, list[bytes]]:
    """The values of each key."""
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found: list[Any] = []
        while len(found) < rows:
            batch = consumer.poll_arrow(300_000)
            assert batch.num_rows, f"only {len(found)} of {rows} rows came"
            found += batch.to_pylist()
    values: dict[bytes, list[bytes]] = {}
    for row in found:
        values.setdefault(row["key"], []).append(row["value"])
    return values


def test_every_listing_of_the_page_runs(broker: Any) -> None:
    page = (ROOT / "docs" / "arrow.md").read_text()
    pieces = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(pieces) >= 6
    shown: dict[str, Any] = {}
    for piece in pieces:
        # Readers of the page need not be as patient as a test.
        code = piece.replace("127.0.0.1:9092", broker.bootstrap).replace("poll_arrow(5_000)", "poll_arrow(300_000)")
        exec(compile(code, "docs/arrow.md", "exec"), shown)
    assert shown["batch"].column("key").to_pylist() == [b"ann", b"bob", b"ann"]
    assert sum(part.rows for part in shown["stored"].values()) == 3
    assert shown["amounts"].to_pylist() == [12, 30, 8]
    assert shown["by_customer"].to_dict() == {b"ann": 20, b"bob": 30}
    assert shown["latest"].rows() == [(b"ann", 2), (b"bob", 1)]
    assert read(broker.bootstrap, "sums", 3) == {b"ann": [b"20"], b"bob": [b"30"], b"eve": [b"0"]}
    assert read(broker.bootstrap, "orders-copy", 3) == {b"ann": [b"12", b"8"], b"bob": [b"30"]}


def test_the_example_sums_the_orders_of_each_customer(broker: Any, topic: str) -> None:
    source, target = f"{topic}-orders", f"{topic}-sums"
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(source, partitions=2)
        admin.create_topic(target)
    customers = ["ann", "bob", "eve"]
    orders = pa.table({"key": [customers[i % 3] for i in range(300)], "value": [str(i) for i in range(300)]})
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send_arrow(orders, source).result(PATIENCE_S)
    run = load_example(ROOT / "examples" / "arrow.py").run
    arguments = (broker.bootstrap, source, target, f"{topic}-group")
    assert run(*arguments, until_end=True) == 300
    assert run(*arguments, until_end=True) == 0, "what was committed does not come again"
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        rows = admin.count_records([target])[target]
    sums = {key: sum(map(int, values)) for key, values in read(broker.bootstrap, target, rows).items()}
    assert sums == {name.encode(): sum(range(i, 300, 3)) for i, name in enumerate(customers)}
