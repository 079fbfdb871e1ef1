"""Fixtures of the tests that start processes: a real etcd."""

from collections.abc import Iterator

import pytest

from tests.support.processes.etcd import EtcdCluster, NoEtcd, find_etcd
from tests.support.waiting import stretched


@pytest.fixture(scope="session")
def etcd_program() -> str:
    try:
        return find_etcd()
    except NoEtcd as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def etcd(etcd_program: str) -> Iterator[EtcdCluster]:
    """One member for the tests of this process. Tests use prefixes of their own, and leave it running."""
    with EtcdCluster() as cluster:
        yield cluster


@pytest.fixture
def etcd_of_three(etcd_program: str) -> Iterator[EtcdCluster]:
    """Three members for one test, which may do to them what it likes."""
    with EtcdCluster(members=3, heartbeat_ms=min(stretched(20), 400)) as cluster:
        yield cluster
