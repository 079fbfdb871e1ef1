"""The listings of the docs run as they are, each one alone."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla import Broker, Producer

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "docs/producer.md", "docs/consumer.md", "docs/groups.md", "docs/admin.md")
ENDLESS = {
    "    while True:\n": "    for _ in range(2):\n",
    "            print(record.partition, record.offset, record.value)\n\nasyncio": "            return\n\nasyncio",
    'guarantee="exactly-once", ': 'guarantee="exactly-once", until_end=True, ',
}
"""Replacements that end endless loops."""


def listings(page: str) -> list[str]:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [listing for listing in shown if "ottla.spark" not in listing]


@pytest.mark.parametrize("page", PAGES)
def test_every_listing_runs_as_written(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some leave a file
    found = listings(page)
    assert found
    with Broker.embedded(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        if page != "docs/admin.md":  # it creates the topic itself
            with Producer(bootstrap_servers=broker.bootstrap) as producer:
                producer.send("orders", b"42 apples").result()
        for listing in found:
            code = listing.replace("127.0.0.1:9092", broker.bootstrap)
            for endless, ending in ENDLESS.items():
                code = code.replace(endless, ending)
            names: dict[str, Any] = {"__name__": "listing"}
            exec(compile(code, page, "exec"), names)
            if "test_orders_are_counted" in names:
                names["test_orders_are_counted"](broker, "orders")


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_without_arguments_prints_its_usage(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(example)])
    with pytest.raises(SystemExit, match=f"python examples/{example.name} "):
        runpy.run_path(str(example), run_name="__main__")
