"""The figure of a failover in docs/clusters.md, and the tool that draws it."""

import importlib.util
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
RUN = {
    "victim": 1,
    "led": [0],
    "end": 9.0,
    "events": {"killed": 2.0, "started": 4.0, "back": 4.5},
    "states": [[0.0, 1, [0, 1, 2]], [2.1, 2, [0, 2]], [5.0, 2, [0, 1, 2]], [8.0, 1, [0, 1, 2]]],
    "acknowledged": [[1.9, 1.99, 2.24, 2.3], [1.9, 2.0, 2.1, 2.2, 2.3]],
    "failures": [],
}


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("failover_timeline", ROOT / "tools" / "failover_timeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words_of(svg: str) -> str:
    return " ".join(
        element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")
    )


def test_the_longest_gap_counts_only_what_began_in_the_period(tool: Any) -> None:
    assert tool.longest_gap([0.0, 5.0, 5.5, 6.0], 4.0, 7.0) == (5.0, 5.5)
    assert tool.longest_gap([], 4.0, 7.0) == (4.0, 7.0)


def test_the_figure_shows_the_kill_the_gap_and_the_return(tool: Any) -> None:
    words = words_of(tool.draw(RUN))
    assert "kill -9 of broker 1" in words
    assert "without an acknowledgement: 250 ms (partitions of the other brokers: 100 ms)" in words
    assert "in sync again leads again" in words


def test_the_figure_in_the_documents_is_one_of_this_tool() -> None:
    words = words_of((ROOT / "docs" / "failover.svg").read_text())
    assert "longest time without an acknowledgement" in words
