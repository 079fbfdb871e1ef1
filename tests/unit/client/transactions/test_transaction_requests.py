"""The requests of a transactional producer, and how their responses are read."""

import pytest

from ottla.client.core.settings import ProducerConfig, build
from ottla.client.transactions import requests
from ottla.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from ottla.types import TopicPartition


@pytest.mark.parametrize("producer_id", [0, 70])
def test_the_next_epoch_is_requested_for_any_producer_id(producer_id: int) -> None:
    config = build(ProducerConfig, {"transactional.id": "x"}, {})
    message = requests.init_producer_id(config, producer_id, 3)(4)
    assert (message.producer_id, message.producer_epoch) == (producer_id, 3)


def test_the_error_that_caused_the_others_comes_first() -> None:
    """A broker that rejects one partition does not attempt the others."""
    codes = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED]
    each = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
        name="t",
        results_by_partition=[each(partition_index=i, partition_error_code=code) for i, code in enumerate(codes)],
    )
    found = requests.partitions_in(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic]))
    assert next(iter(found.items())) == (TopicPartition("t", 1), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert len(found) == 3
