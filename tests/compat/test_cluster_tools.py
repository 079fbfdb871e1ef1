"""Admin calls about replicas, and `ottla cluster`, do the same with Ottla and with Apache Kafka."""

import json
from typing import Any

import pytest

from ottla import Admin, KafkaError
from ottla.cli.main import main
from tests.support.processes.oracle import Target

pytestmark = pytest.mark.oracle


@pytest.fixture(params=["ottla", "kafka"])
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.getfixturevalue(request.param)
    return found


def refused(call: Any, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(KafkaError) as caught:
        call(*arguments, **keywords)
    return caught.value.code.name


def test_elections_and_moves_are_checked(target: Target, topic: str) -> None:
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
        (here,) = {p.leader for p in admin.describe_topics([topic])[0].partitions}
        assert admin.elect_leaders([(topic, 0), (topic, 1)]) == {}, "nothing to do"
        assert admin.elect_leaders([(topic, 0)], unclean=True) == {}
        unknown = {p: error.code.name for p, error in admin.elect_leaders([(topic, 9)]).items() if error is not None}
        assert unknown == {(topic, 9): "UNKNOWN_TOPIC_OR_PARTITION"}
        assert admin.list_partition_reassignments() == {}
        move = admin.alter_partition_reassignments
        assert refused(move, {(topic, 0): None}) == "NO_REASSIGNMENT_IN_PROGRESS"
        assert refused(move, {(topic, 0): [here, 4711]}) == "INVALID_REPLICA_ASSIGNMENT"
        assert refused(move, {(topic, 0): []}) == "INVALID_REPLICA_ASSIGNMENT"
        assert refused(move, {(topic, 9): [here]}) == "UNKNOWN_TOPIC_OR_PARTITION"
        move({(topic, 0): [here]})
        assert admin.list_partition_reassignments([(topic, 0)]) == {}
        assert refused(admin.unregister_broker, 4711) == "BROKER_ID_NOT_REGISTERED"
        quorum = admin.describe_quorum()
        assert quorum.controller_id in quorum.voters
        assert quorum.epoch >= 1
        admin.delete_topics([topic])


def test_the_overview_is_the_same(target: Target, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    assert main(["cluster", "--bootstrap", target.bootstrap, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (broker,) = document["brokers"]
    assert broker["controller"]
    assert broker["leads"] == broker["replicas"] == broker["in_sync"] == document["partitions"] >= 2
    assert broker["bytes"] >= 0
    assert document["controller_epoch"] >= 1
    assert document["offline"] == document["under_replicated"] == document["reassignments"] == []
    assert main(["cluster", "elect-leaders", topic, "--bootstrap", target.bootstrap, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"elected": [], "failed": []}
    assert main(["cluster", "drain", str(broker["id"]), "--bootstrap", target.bootstrap]) == 1
    assert "there are only 0 other brokers" in capsys.readouterr().err
    assert main(["cluster", "watch", "--until-in-sync", "--bootstrap", target.bootstrap]) == 0
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.delete_topics([topic])
