"""The contract of metadata stores, on a real etcd: the same tests as for the other stores."""

import itertools

import pytest

from ottla.metadata.etcd.location import parse_location
from ottla.metadata.etcd.store import EtcdStore
from tests.support.processes.etcd import EtcdCluster
from tests.support.waiting import stretched
from tests.unit.metadata.test_store_contract import *  # noqa: F403 - the tests
from tests.unit.metadata.test_store_contract import World

_numbers = itertools.count()


@pytest.fixture  # type: ignore[no-redef]
def world(etcd: EtcdCluster) -> World:
    location = parse_location(etcd.url(f"/contract-{next(_numbers)}"))

    async def expire(store: EtcdStore, seen_by: EtcdStore) -> None:
        etcd.members[0].ask("lease/revoke", {"ID": str(store.session_id)})

    return World(lambda: EtcdStore(location, session_timeout_ms=stretched(3_000)), expire)
