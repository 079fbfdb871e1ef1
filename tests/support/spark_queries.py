"""Streaming queries on a busy machine: a Python process that starts too late for Spark is started again."""

from collections.abc import Callable
from typing import Any

from ottla.pipeline.running import queries

MANY = 1000
"""How often a test starts a query: the machine may be busy for any time."""


def start_with_retries(start: Callable[[], Any]) -> Any:
    """Starts a query and returns it once its sources are up, or once it has failed for another reason."""
    return queries.start_with_retries(start, MANY)
