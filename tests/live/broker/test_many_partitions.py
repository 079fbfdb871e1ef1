"""A broker with many partitions: clients are served meanwhile, starts and stops are quick, failures go away."""

import os
import resource
import time

import pytest

from ottla import Admin, Broker, Producer
from ottla.errors import ErrorCode
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.messages.produce import ProduceRequest
from tests.support.waiting import PATIENCE_S, eventually, slowness
from tests.support.wire.pulse import Pulse
from tests.support.wire.raw import RawConnection, batch

PARTITIONS = 200


def produce_to_all(bootstrap: str, topic: str) -> None:
    """One record to each partition, a hundred per request."""
    with RawConnection(bootstrap) as connection:
        for first in range(0, PARTITIONS, 100):
            partitions = [
                ProduceRequest.PartitionProduceData(index=index, records=batch(b"a"))
                for index in range(first, first + 100)
            ]
            topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=partitions)]
            answer = connection.ask(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics), 9)
            assert {part.error_code for part in answer.responses[0].partition_responses} == {ErrorCode.NONE}


def end_offsets(bootstrap: str, topic: str) -> set[tuple[int, int]]:
    """The different (error code, end offset) of all partitions."""
    asked = [ListOffsetsRequest.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(PARTITIONS)]
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=asked)]
    with RawConnection(bootstrap) as connection:
        answer = connection.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 6)
    return {(partition.error_code, partition.offset) for partition in answer.topics[0].partitions}


@pytest.mark.slow
def test_clients_are_served_while_many_partitions_are_created_and_starts_and_stops_are_quick() -> None:
    with Broker.embedded() as broker, Admin(bootstrap_servers=broker.bootstrap) as admin:
        with Pulse(broker.bootstrap, broker_pid=broker.pid) as pulse:
            started = time.monotonic()
            admin.create_topic("many", partitions=PARTITIONS)
            took_s = time.monotonic() - started
        assert pulse.longest_s < took_s / 2, "other clients are answered in between"
        assert end_offsets(broker.bootstrap, "many") == {(0, 0)}, "all can be used as soon as the creation is answered"
        produce_to_all(broker.bootstrap, "many")
        started = time.monotonic()
        broker.stop()
        broker.restart()
        assert time.monotonic() - started < 10 * slowness(), "under a second on an idle machine"
        assert end_offsets(broker.bootstrap, "many") == {(0, 1)}
        broker.kill()
        broker.restart()
        assert end_offsets(broker.bootstrap, "many") == {(0, 1)}


def test_a_partition_that_found_no_file_descriptor_is_served_when_there_are_some_again() -> None:
    with (
        Broker.embedded() as broker,
        Admin(bootstrap_servers=broker.bootstrap) as admin,
        Producer(bootstrap_servers=broker.bootstrap, delivery_timeout_ms=60_000) as producer,
    ):
        admin.create_topic("before")
        producer.send("before", b"a").result(PATIENCE_S)
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        used = max(map(int, os.listdir(f"/proc/{broker.pid}/fd"))) + 1
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used, hard))
        admin.create_topic("orders")
        eventually(lambda: "partition orders-0: offline, will be retried" in broker.log)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert producer.send("orders", b"a").result(PATIENCE_S).offset == 0
        assert "partition orders-0: was offline, is served again" in broker.log
