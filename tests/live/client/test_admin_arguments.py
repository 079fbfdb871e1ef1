"""The forms in which an admin call takes partitions and numbers."""

from typing import Any

from ottla import Admin, NewTopic, TopicPartition
from ottla.client.core.model import LATEST
from tests.support.waiting import eventually


def test_partitions_may_be_plain_pairs(broker: Any, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(f"{topic}-pairs", 1)])
        pair, partition = (f"{topic}-pairs", 0), TopicPartition(f"{topic}-pairs", 0)
        found = admin.list_offsets({pair: LATEST})[partition]
        assert found is not None
        assert found.offset == 0
        admin.alter_group_offsets(topic, {pair: 0})
        assert admin.list_group_offsets(topic, [pair])[partition].offset == 0
        admin.delete_group_offsets(topic, [pair])
        assert admin.list_group_offsets(topic) == {}
        assert admin.delete_records({pair: 0}) == {partition: 0}


def test_any_integer_type_is_accepted_for_partitions(broker: Any, topic: str) -> None:
    """Such as numpy's, which is none of Python's own."""

    class Three:
        def __index__(self) -> int:
            return 3

    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=Three())  # type: ignore[arg-type]
        eventually(
            lambda: len({p for known in admin.list_topics() if known.name == topic for p in known.partitions}) == 3
        )
