"""The disk of one broker is full: the others take over what it led, and it comes back in sync when there is space."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.cluster import Node, OttlaCluster
from tests.support.processes.cluster_load import QUICK, Load
from tests.support.processes.small_disk import SmallDisk, small_disk
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


class OneSmallDisk(OttlaCluster):
    """Three brokers; the second one has its data on a small disk."""

    def __init__(self, disk: Path) -> None:
        super().__init__(settings={**QUICK, "log.segment.bytes": "1048576"})
        self.disk = disk

    def make_nodes(self) -> Iterable[Node]:
        nodes = list(super().make_nodes())
        nodes[1].data = self.disk / "data"
        return nodes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "24m") as mounted:
        yield mounted


def test_clients_continue_when_the_disk_of_a_broker_is_full(disk: SmallDisk, topic: str) -> None:
    with OneSmallDisk(disk.path) as cluster, Load(cluster, topic, clients=("ottla", "confluent-kafka")) as load:
        assert {state.leader for state in cluster.describe(topic)} == {1, 2, 3}, "the second broker leads a partition"

        def fill() -> None:
            disk.fill()
            eventually(lambda: all(state.leader != 2 and 2 not in state.isr for state in cluster.describe(topic)))

        load.suffer("full disk", 2, fill)
        disk.free()
        cluster.await_in_sync(topic)
        load.finish()
