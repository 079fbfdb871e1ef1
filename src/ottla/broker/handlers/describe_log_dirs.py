"""DescribeLogDirs v1-5: the log directory, its volume, and the size of each partition (KIP-113).

v2   flexible (KIP-482)
v3   an error code for the whole response (KIP-784)
v4   total and usable bytes of the volume (KIP-827)
v5   cordoned directories (KIP-1066), here none
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.replication.replica import Replica
from ottla.security.resources import CLUSTER, Operation

Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
Partition = DescribeLogDirsResponse.DescribeLogDirsPartition


@handles(ApiKey.DESCRIBE_LOG_DIRS)
def describe_log_dirs(request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
    if not context.allows(Operation.DESCRIBE, CLUSTER):
        # Before v3 there is no error code: the list is just empty.
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    replicas = context.services.replicas
    if request.topics is None:
        chosen = {name: list(hosted.replicas.values()) for name, hosted in replicas.topics.items()}
    else:
        chosen = {}
        for topic in request.topics:
            found = [replicas.find(topic.topic, index) for index in dict.fromkeys(topic.partitions)]
            chosen.setdefault(topic.topic, []).extend(replica for replica in found if replica is not None)
    total_bytes, usable_bytes = replicas.volume_bytes()
    result = DescribeLogDirsResponse.DescribeLogDirsResult(
        log_dir=replicas.log_directory.path,
        topics=[
            Topic(name=name, partitions=[_describe(replica) for replica in held])
            for name, held in chosen.items()
            if held
        ],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return DescribeLogDirsResponse(results=[result])


def _describe(replica: Replica) -> Partition:
    log = replica.log
    return Partition(
        partition_index=replica.topic_partition.partition,
        partition_size=log.size_bytes,
        offset_lag=max(0, log.log_end_offset - log.high_watermark),
    )
