"""How brokers join, follow and leave a cluster (`tests/unit/metadata/test_membership.py`), on a real etcd."""

import itertools

import pytest

from ottla.metadata.etcd.location import parse_location
from ottla.metadata.etcd.store import EtcdStore
from tests.support.processes.etcd import EtcdCluster
from tests.support.waiting import stretched
from tests.unit.metadata.test_membership import *  # noqa: F403 - the tests
from tests.unit.metadata.test_membership import World

pytestmark = pytest.mark.long
_numbers = itertools.count()


@pytest.fixture  # type: ignore[no-redef]
def world(etcd: EtcdCluster) -> World:
    location = parse_location(etcd.url(f"/membership-{next(_numbers)}"))
    return World(lambda: EtcdStore(location, session_timeout_ms=stretched(3_000)))
