"""Stores in these tests do not give up because the machine is busy."""

import pytest

from tests.support.waiting import PATIENCE_S
from tests.unit.metadata.conftest import open_memory_store, tree

# Tests of followers run here on etcd; some of them open a store in memory next to it.
__all__ = ["open_memory_store", "tree"]


@pytest.fixture(autouse=True)
def _patient_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("session_writes.GIVE_UP_S", "store.GIVE_UP_S", "store.FIRST_START_S"):
        monkeypatch.setattr(f"ottla.metadata.etcd.{name}", PATIENCE_S)
