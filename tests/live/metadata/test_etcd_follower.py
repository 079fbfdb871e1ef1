"""How brokers join, follow and leave a cluster (`tests/unit/metadata/test_follower.py`), on a real etcd."""

import itertools

import pytest

from ottla.metadata.etcd.location import parse_location
from ottla.metadata.etcd.store import EtcdStore
from tests.support.processes.etcd import EtcdCluster
from tests.support.waiting import stretched
from tests.support.worlds.follower_world import BrokersWorld as World
from tests.unit.metadata.test_follower import *  # noqa: F403 - the tests

pytestmark = pytest.mark.long
_numbers = itertools.count()


@pytest.fixture  # type: ignore[no-redef]
def world(etcd: EtcdCluster) -> World:
    location = parse_location(etcd.url(f"/follower-{next(_numbers)}"))
    return World(lambda: EtcdStore(location, session_timeout_ms=stretched(3_000)))
