"""Spec: R1. The transactional copier on three brokers with three replicas, while brokers or copiers are bounced.

One case runs by default, the matrix in the long lane. OTTLA_COPIES=100000 OTTLA_BOUNCES=20 is the size of the recipe.
"""

import itertools
import os
from collections.abc import Callable

import pytest

from tests.support.processes.cluster import OttlaCluster
from tests.support.processes.cluster_load import QUICK
from tests.support.processes.copying import LIBRDKAFKA, OUTPUT, OWN, check_copy, deadline_s

COPIES = int(os.environ.get("OTTLA_COPIES", "2000"))
MATRIX_COPIES = int(os.environ.get("OTTLA_COPIES", "20000"))
BOUNCES = int(os.environ.get("OTTLA_BOUNCES", "4"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * deadline_s(MATRIX_COPIES))]


def bouncing(cluster: OttlaCluster, hard: bool) -> Callable[[], None]:
    """Bounces one broker after the other, each when the last one is back in sync."""
    turns = itertools.cycle(cluster.nodes)

    def bounce() -> None:
        node = cluster.nodes[next(turns)]
        node.kill() if hard else node.terminate()
        cluster.start(node.id)
        for topic in (OUTPUT, "__consumer_offsets", "__transaction_state"):
            cluster.await_in_sync(topic)

    return bounce


def copy(module: str, bounced: str, hard: bool, partitions: int, in_group: bool, count: int) -> None:
    with OttlaCluster(settings=QUICK) as cluster:
        check_copy(
            cluster.bootstrap,
            module,
            partitions=partitions,
            in_group=in_group,
            count=count,
            replicas=3,
            bounces=BOUNCES,
            bounce_broker=bouncing(cluster, hard) if bounced == "brokers" else None,
            hard=hard,
        )


def test_the_copy_is_exact_while_brokers_are_killed() -> None:
    copy(OWN, "brokers", True, 3, True, COPIES)


@pytest.mark.long
@pytest.mark.parametrize("in_group", [True, False], ids=["group", "assigned"])
@pytest.mark.parametrize("partitions", [1, 9], ids=["one partition", "nine partitions"])
@pytest.mark.parametrize("hard", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize("bounced", ["brokers", "clients"])
@pytest.mark.parametrize("module", [pytest.param(OWN, id="own client"), pytest.param(LIBRDKAFKA, id="librdkafka")])
def test_the_copy_is_exact(module: str, bounced: str, hard: bool, partitions: int, in_group: bool) -> None:
    copy(module, bounced, hard, partitions, in_group, MATRIX_COPIES)
