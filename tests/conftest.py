"""Fixtures that every test may ask for. Nothing heavy is imported before somebody does."""

import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.broker.embedded import EmbeddedBroker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> "Iterator[EmbeddedBroker]":
    """A running broker, one for each worker of a test run. Tests share it and keep apart by their topics."""
    from ottla import Broker

    with Broker.embedded() as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A topic name nobody else uses."""
    return f"topic-{os.getpid()}-{next(_numbers)}"
