"""A broker returns with another data directory than it left with: it is repaired or refused, and nothing is lost.

Spec: B10
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla
from ottla.broker.embedded.cluster import EmbeddedCluster
from ottla.client.core.model import NewTopic
from ottla.errors import OttlaError
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedCluster]:
    with ottla.Broker.embedded(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: EmbeddedCluster) -> EmbeddedCluster:
    running.restore()
    return running


def write(cluster: EmbeddedCluster, topic: str, values: range) -> None:
    with ottla.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for value in values:
            producer.send(topic, b"%d" % value, partition=0)
        producer.flush()


def read(cluster: EmbeddedCluster, topic: str, count: int) -> list[int]:
    found: list[int] = []
    with ottla.Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        while len(found) < count:
            records = consumer.poll(300_000)
            assert records, f"{len(found)} of {count} records"
            found += [int(record.value or b"") for record in records]
    return found


def create(cluster: EmbeddedCluster, topic: str, *replicas: int) -> None:
    with ottla.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, assignments={0: replicas})])


def in_sync(cluster: EmbeddedCluster, topic: str) -> tuple[int, ...]:
    with ottla.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return tuple(sorted(admin.describe_topics([topic])[0].partitions[0].in_sync_replicas))


def test_an_empty_directory_is_filled_by_the_other_replicas(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, 0, 1, 2)
    write(cluster, topic, range(100))
    cluster.kill(0)
    shutil.rmtree(cluster[0].data)
    cluster.restart(0)
    eventually(lambda: in_sync(cluster, topic) == (0, 1, 2))
    # The copy is complete: the others are not needed to read it.
    cluster.kill(1)
    eventually(lambda: in_sync(cluster, topic) == (0, 2))
    write(cluster, topic, range(100, 110))
    assert read(cluster, topic, 110) == list(range(110))


def test_an_older_directory_is_brought_up_to_date(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    create(cluster, topic, 0, 1, 2)
    write(cluster, topic, range(100))
    eventually(lambda: in_sync(cluster, topic) == (0, 1, 2))
    cluster.stop(0)
    shutil.copytree(cluster[0].data, tmp_path / "backup")
    cluster.restart(0)
    write(cluster, topic, range(100, 200))
    eventually(lambda: in_sync(cluster, topic) == (0, 1, 2))
    cluster.stop(0)
    shutil.rmtree(cluster[0].data)
    shutil.copytree(tmp_path / "backup", cluster[0].data)
    cluster.restart(0)
    eventually(lambda: in_sync(cluster, topic) == (0, 1, 2))
    assert read(cluster, topic, 200) == list(range(200))


def test_an_empty_directory_is_refused_if_it_had_the_only_copy(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    create(cluster, topic, 1)
    write(cluster, topic, range(10))
    cluster.stop(1)
    shutil.move(cluster[1].data, tmp_path / "elsewhere")
    with pytest.raises(OttlaError, match="did not start") as caught:
        cluster.restart(1)
    assert f"is new, but only this broker has the records of 1 partitions ({topic}-0)" in caught.value.hint
    shutil.rmtree(cluster[1].data)
    shutil.move(tmp_path / "elsewhere", cluster[1].data)
    cluster.restart(1)
    assert read(cluster, topic, 10) == list(range(10))
