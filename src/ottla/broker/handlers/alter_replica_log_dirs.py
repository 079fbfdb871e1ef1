"""AlterReplicaLogDirs v1-2: moves replicas between the directories of a broker (KIP-113). This broker has only one.

v2   flexible (KIP-482)
"""

import logging
import os

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from ottla.security.resources import CLUSTER, Operation

log = logging.getLogger("ottla.broker")


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS)
def alter_replica_log_dirs(request: AlterReplicaLogDirsRequest, context: Context) -> AlterReplicaLogDirsResponse:
    own = os.path.abspath(context.services.config.log_dirs[0])
    is_allowed = context.allows(Operation.ALTER, CLUSTER)
    results: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        is_own = os.path.abspath(directory.path) == own
        if is_allowed and not is_own:
            # The response has no room for an explanation.
            log.warning("%s: replicas cannot be moved there: a broker has one directory, %s", directory.path, own)
        code = ErrorCode.NONE if is_own else ErrorCode.LOG_DIR_NOT_FOUND
        if not is_allowed:
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for topic in directory.topics:
            results.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, code))
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(
                topic_name=topic,
                partitions=[
                    AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=error
                    )
                    for index, error in partitions.items()
                ],
            )
            for topic, partitions in results.items()
        ]
    )
