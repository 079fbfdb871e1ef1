"""Metadata stores for the tests of followers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.metadata.sqlite.store import SqliteStore
from ottla.metadata.store import MetadataStore
from ottla.testing.memory_store import MemoryStore, MemoryTree

Make = Callable[[], MetadataStore]


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


@pytest.fixture
def open_memory_store(tree: MemoryTree) -> Make:
    """Opens another session of the store in memory."""
    return lambda: MemoryStore(tree)


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, open_memory_store: Make) -> Make:
    """Opens another session of a store: in memory, and in an SQLite file."""
    if request.param == "memory":
        return open_memory_store
    return lambda: SqliteStore(str(tmp_path / "metadata.sqlite"))
