"""A cluster in child processes: its brokers can be killed, paused, stopped and started again, one by one."""

from pathlib import Path

import pytest

import ottla
from ottla.errors import ArgumentError, OttlaError
from tests.support.waiting import eventually


def ids(bootstrap: str) -> list[int]:
    with ottla.Admin(bootstrap_servers=bootstrap) as admin:
        return [node.node_id for node in admin.describe_cluster().brokers]


def test_brokers_leave_and_come_back_one_by_one() -> None:
    with ottla.Broker.embedded(brokers=3) as cluster:
        assert len(cluster) == 3
        assert cluster.bootstrap == ",".join(broker.bootstrap for broker in cluster)
        assert ids(cluster.bootstrap) == [0, 1, 2]
        before = [broker.bootstrap for broker in cluster]

        cluster.kill(0)
        assert not cluster[0].is_running
        eventually(lambda: ids(cluster[1].bootstrap) == [1, 2])
        cluster.stop(cluster[1])
        eventually(lambda: ids(cluster[2].bootstrap) == [2])
        cluster.restart(0)
        cluster.restart(1)
        eventually(lambda: ids(cluster.bootstrap) == [0, 1, 2])
        assert [broker.bootstrap for broker in cluster] == before

        cluster.pause(2)
        cluster.kill(1)
        cluster.restore()
        eventually(lambda: ids(cluster.bootstrap) == [0, 1, 2])
        assert "--- broker 2" in cluster.log
        assert "has stopped" in cluster[1].log
        data = cluster.data
        assert repr(cluster) == "<cluster of 3 brokers, 3 running>"
    assert not data.exists()


def test_a_paused_broker_can_be_closed() -> None:
    with ottla.Broker.embedded(brokers=2) as cluster:
        cluster.pause(1)
    assert not any(broker.is_running for broker in cluster)


def test_settings_and_directory_are_for_all_brokers(tmp_path: Path) -> None:
    with ottla.Broker.embedded(tmp_path / "d", brokers=3, settings={"num.partitions": 2}) as cluster:
        with ottla.Admin(bootstrap_servers=cluster.bootstrap) as admin:
            made = admin.create_topic("orders")
        assert (made.partitions, made.replication_factor) == (2, 3)
    assert {path.name for path in (tmp_path / "d").iterdir()} == {"broker-0", "broker-1", "broker-2", "cluster"}


def test_mistakes_are_explained() -> None:
    with pytest.raises(ArgumentError, match="brokers must be at least 1"):
        ottla.Broker.embedded(brokers=0)
    with pytest.raises(OttlaError, match="did not start"):
        ottla.Broker.embedded(brokers=2, settings={"num.partitions": "none"})
    with ottla.Broker.embedded(brokers=1) as cluster:
        with pytest.raises(OttlaError, match="there is no broker 1"):
            cluster.kill(1)
        cluster.kill(0)
        with pytest.raises(OttlaError, match="not running"):
            cluster.pause(0)
