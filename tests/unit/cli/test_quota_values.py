"""Quotas as users write them, and as they are shown."""

import doctest

import pytest

from ottla.cli import quota
from ottla.cli.quota import parse_quota, quota_text
from ottla.errors import OttlaError


def test_the_examples_in_docstrings_work() -> None:
    assert doctest.testmod(quota).failed == 0


@pytest.mark.parametrize(
    ("name", "text", "value", "shown"),
    [
        ("producer_byte_rate", "10MB/s", 10_000_000, "10MB/s"),
        ("producer_byte_rate", "10 mb/s", 10_000_000, "10MB/s"),
        ("consumer_byte_rate", "512KiB/s", 524_288, "524.288KB/s"),
        ("consumer_byte_rate", "1.5MiB", 1_572_864, "1572.864KB/s"),
        ("consumer_byte_rate", "1048576", 1_048_576, "1048.576KB/s"),
        ("consumer_byte_rate", "999B/s", 999, "999B/s"),
        ("producer_byte_rate", "2.5GB/s", 2_500_000_000, "2.5GB/s"),
        ("request_percentage", "12.5%", 12.5, "12.5%"),
        ("request_percentage", "150", 150, "150%"),
        ("controller_mutation_rate", "0.5/s", 0.5, "0.5/s"),
        ("connection_creation_rate", "20", 20, "20/s"),
    ],
)
def test_units_are_accepted_and_shown(name: str, text: str, value: float, shown: str) -> None:
    assert parse_quota(name, text) == value
    assert quota_text(name, value) == shown
    assert parse_quota(name, shown) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("producer_byte_rate", "fast", "invalid value 'fast' for producer_byte_rate"),
        ("producer_byte_rate", "10TB/s", "invalid value '10TB/s' for producer_byte_rate"),
        ("producer_byte_rate", "-5", "invalid value '-5' for producer_byte_rate"),
        ("producer_byte_rate", "0MB/s", "producer_byte_rate must be greater than 0, not 0MB/s"),
        ("producer_byte_rate", "0.5", "producer_byte_rate must be a whole number, not 0.5"),
        ("request_percentage", "5MB/s", "invalid value '5MB/s' for request_percentage"),
        ("request_percentage", "5/s", "invalid value '5/s' for request_percentage"),
        ("connection_creation_rate", "20%", "invalid value '20%' for connection_creation_rate"),
        ("speed", "1", "'speed' is not a quota of this entity"),
    ],
)
def test_a_value_that_makes_no_sense_is_an_error_with_a_hint(name: str, text: str, message: str) -> None:
    with pytest.raises(OttlaError) as caught:
        parse_quota(name, text)
    assert caught.value.message == message
    assert caught.value.hint
