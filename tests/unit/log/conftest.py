"""Hypothesis settings for the log's properties, and a check that every tested log can be loaded from its files."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.worlds.log_reload import assert_reload_matches
from tests.support.worlds.log_world import LogWorld

settings.register_profile("log", deadline=None)
settings.load_profile("log")


@pytest.fixture(autouse=True)
def _reload_matches() -> Iterator[None]:
    """A fresh load of each world's files yields the same offsets, producers and epochs as its live log."""
    LogWorld.instances.clear()
    yield
    for world in LogWorld.instances:
        if world.checks_reload:
            assert_reload_matches(world.log, now=world.now)
