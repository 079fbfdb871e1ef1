"""The topics that attacks use, created and filled before they start."""

import random

from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.record_batch import build_batch
from tests.support.wire.raw import Side

LARGE = "hostile-large"
"""For fetches: filled with incompressible records."""
LARGE_PARTITIONS = 4
PLAIN = "hostile-plain"
RECOMPRESSED = "hostile-recompressed"
COMPACTED = "hostile-compacted"
VICTIMS = (PLAIN, RECOMPRESSED, COMPACTED)
"""For bombs: the broker decompresses what is sent to the last two."""
INT32_MAX = 2**31 - 1


def prepare(bootstrap: str, large_topic_mb: int) -> None:
    side = Side("broker", bootstrap, LARGE)
    side.create(LARGE, LARGE_PARTITIONS)
    # What bombs leave behind is deleted soon: a run may take long.
    short = {"retention_bytes": "20000000", "segment_bytes": "10000000", "file_delete_delay_ms": "1000"}
    side.create(PLAIN, 1, **short)
    side.create(RECOMPRESSED, 1, compression_type="zstd", **short)
    side.create(COMPACTED, 1, cleanup_policy="compact")
    filler = random.Random(7).randbytes(900_000)
    for number in range(large_topic_mb * 1_000_000 // len(filler) + 1):
        answer = side.produce(build_batch([(1_700_000_000_000, None, filler, ())]), partition=number % LARGE_PARTITIONS)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0, answer
    side.close()


def fetch_request(
    *,
    topic: str = LARGE,
    max_bytes: int = INT32_MAX,
    partitions: range = range(LARGE_PARTITIONS),
    session_epoch: int = -1,
) -> FetchRequest:
    """A fetch from the beginning of the large topic, by default of as much as there is."""
    wanted = [
        FetchRequest.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=max_bytes)
        for partition in partitions
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=session_epoch,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=wanted)],
    )


def produce_request(topic: str, records: bytes, acks: int = -1) -> ProduceRequest:
    data = [ProduceRequest.PartitionProduceData(index=0, records=records)]
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)]
    )


def create_request(name: str, partitions: int) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
