"""A broker dies or hangs inside a commit to the metadata that all brokers share; the others go on."""

import threading
from pathlib import Path

import pytest

from ottla.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from tests.support.processes.cluster import OttlaCluster, OttlaNode
from tests.support.processes.cluster_load import Load
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow


def create(cluster: OttlaCluster, topic: str, node_id: int) -> ErrorCode:
    wanted = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=2)
    answer = cluster.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=300_000), 7, node_id)
    return ErrorCode(answer.topics[0].error_code)


@pytest.mark.parametrize("fate", ["SIGKILL", "SIGSTOP"])
def test_the_others_go_on_when_a_broker_dies_or_hangs_inside_a_metadata_commit(
    impatient_cluster: OttlaCluster, topic: str, tmp_path: Path, fate: str
) -> None:
    """The victim holds the write lock of SQLite. One that hangs beyond its session is killed by others."""
    cluster = impatient_cluster
    victim = cluster.nodes[2]
    assert isinstance(victim, OttlaNode)
    trigger = tmp_path / "trigger"
    victim.terminate()
    victim.module, victim.environment = "tests.support.processes.doomed_broker", {"OTTLA_DOOM": f"{fate}:{trigger}"}
    try:
        cluster.start(victim.id)
        with Load(cluster, topic, clients=("ottla", "confluent-kafka")) as load:

            def die_in_a_commit() -> None:
                trigger.touch()
                # The commit that kills the broker: no other broker learns of it.
                asking = threading.Thread(target=_ask_in_vain, args=(cluster, f"{topic}-never", victim.id), daemon=True)
                asking.start()
                eventually(lambda: not trigger.exists())
                eventually(lambda: not victim.is_running)
                asking.join(PATIENCE_S)

            load.suffer(f"{fate} in a commit", victim.id, die_in_a_commit)
            assert create(cluster, f"{topic}-after", 1) == ErrorCode.NONE
            victim.kill()
            victim.module, victim.environment = "ottla", {}
            cluster.start(victim.id)
            cluster.await_in_sync(topic)
            load.finish()
        assert cluster.describe(f"{topic}-never") == [], "a commit that was interrupted is not applied"
    finally:
        victim.module, victim.environment = "ottla", {}


def _ask_in_vain(cluster: OttlaCluster, topic: str, node_id: int) -> None:
    try:
        create(cluster, topic, node_id)
    except OSError:
        pass
