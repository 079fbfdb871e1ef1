"""The rebalance listener of a blocking consumer on a running broker."""

from typing import Any

import pytest

from ottla import Consumer, Producer
from ottla.client.group.rebalance_listener import RebalanceListener
from ottla.types import TopicPartition


def test_closing_after_an_error_does_not_call_on_partitions_revoked(ottla: Any, topic: str) -> None:
    with Producer(bootstrap_servers=ottla.bootstrap) as producer:
        producer.send(topic, "x")

    class Plain(RebalanceListener):
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            consumer.commit()

    settings = {"bootstrap_servers": ottla.bootstrap, "group_id": topic, "auto_offset_reset": "earliest"}
    with (  # noqa: PT012 - the block is what is tested
        pytest.raises(ValueError, match="processing failed"),
        Consumer(enable_auto_commit=False, **settings) as consumer,
    ):
        consumer.subscribe([topic], listener=Plain())
        while not consumer.poll(1_000):
            pass
        raise ValueError("processing failed")
    with Consumer(**settings) as consumer:
        assert consumer.committed([(topic, 0)]) == {(topic, 0): None}
