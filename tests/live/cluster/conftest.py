"""Three brokers for the tests of this folder. A test may leave brokers dead or paused: the next one restores them."""

from collections.abc import Iterator

import pytest

from tests.support.processes.cluster import OttlaCluster
from tests.support.processes.cluster_load import IMPATIENT, QUICK


@pytest.fixture(scope="module")
def brokers_of_the_module() -> Iterator[OttlaCluster]:
    with OttlaCluster(settings=QUICK) as running:
        yield running


@pytest.fixture
def cluster(brokers_of_the_module: OttlaCluster) -> OttlaCluster:
    brokers_of_the_module.restore()
    return brokers_of_the_module


@pytest.fixture(scope="module")
def impatient_brokers_of_the_module() -> Iterator[OttlaCluster]:
    with OttlaCluster(settings=IMPATIENT) as running:
        yield running


@pytest.fixture
def impatient_cluster(impatient_brokers_of_the_module: OttlaCluster) -> OttlaCluster:
    """Its sessions are short."""
    impatient_brokers_of_the_module.restore()
    return impatient_brokers_of_the_module
