"""Benchmark tables: best, median and ratios; no name of the machine."""

import socket

import pytest

from bench import results
from bench.results import Results


def filled() -> Results:
    found = results.Results({"ottla": "Ottla 1", "kafka": "Kafka 4"})
    for value in (200.0, 400.0, 300.0):
        found.add("speed", "produce", "records/s", "ottla", value, more_is_better=True)
    for value in (600.0, 150.0, 600.0):
        found.add("speed", "produce", "records/s", "kafka", value, more_is_better=True)
    found.add("speed", "latency", "µs", "ottla", 20.0)
    found.add("speed", "latency", "µs", "kafka", 80.0)
    return found


def test_a_row_has_best_median_and_the_ratio_of_the_medians() -> None:
    heading, (throughput, latency) = filled().rows("speed")
    assert heading == ["", "unit", "Ottla 1", "Kafka 4", "Ottla ÷ Kafka"]
    # More is better: the best is the largest, and half as much as the other is marked.
    assert throughput == ["produce", "records/s", "400 / 300", "600 / 600", "0.500× ✗"]
    # Less is better: a quarter of the other's is good.
    assert latency == ["latency", "µs", "20.0 / 20.0", "80.0 / 80.0", "0.250×"]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Kafka 4.3.1", "Kafka"),
        ("kafka-python, no crc32c", "kafka-python"),
        ("kafka-python 3.0.12 (no crc32c)", "kafka-python"),
        ("ottla, pure", "pure"),
        ("ottla at-least-once", "at-least-once"),
        ("Ottla-async", "Ottla-async"),
        ("Spark's connector", "Spark's connector"),
    ],
)
def test_the_heading_of_a_ratio_names_the_other_contender(title: str, name: str) -> None:
    found = filled()
    found.titles["kafka"] = title
    assert found.rows("speed")[0][-1] == f"Ottla ÷ {name}"


def test_a_missing_contender_is_shown_as_a_dash() -> None:
    found = filled()
    found.add("speed", "memory", "MB", "ottla", 30.0)
    assert found.rows("speed")[1][2] == ["memory", "MB", "30.0 / 30.0", "—", "—"]


def test_the_markdown_names_the_command_but_not_the_machine() -> None:
    text = filled().markdown("./run bench --quick")
    assert text.startswith("`./run bench --quick`, ")
    assert "| produce | records/s | 400 / 300 | 600 / 600 | 0.500× ✗ |" in text
    assert socket.gethostname() not in text
    assert "/home" not in text
    assert "/root" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "0.012"), (1.234, "1.23"), (45.67, "45.7"), (456.7, "457"), (4567.0, "4,567"),
     (45_678.0, "45.7 k"), (999_499.0, "999 k"), (1_234_567.0, "1.23 M")],
)  # fmt: skip
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert results.number(value) == text
