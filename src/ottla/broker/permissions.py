"""The permissions that each API requires; without an authorizer, none. Pure.

The handlers check them (`Context.require`, `allows`, `allowed`). This table has them in one place: the documentation
is generated from it, and `tests/live/broker/test_acls.py` proves that each of them matters.
"""

from typing import NamedTuple

from ottla.protocol.api import ApiKey
from ottla.security.resources import Operation, ResourceType

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TRANSACTION = ResourceType.TRANSACTIONAL_ID


class Permission(NamedTuple):
    """An operation on a type of resource, and when it is required if it is not always."""

    operation: Operation
    type: ResourceType
    when: str = ""


def _cluster(operation: Operation) -> tuple[Permission, ...]:
    return (Permission(operation, _CLUSTER),)


_EVERYONE: tuple[Permission, ...] = ()
_HIDES = "topics without it are left out, or refused if they are named"

PERMISSIONS: dict[ApiKey, tuple[Permission, ...]] = {
    ApiKey.API_VERSIONS: _EVERYONE,
    ApiKey.SASL_HANDSHAKE: _EVERYONE,
    ApiKey.SASL_AUTHENTICATE: _EVERYONE,
    # Records
    ApiKey.PRODUCE: (
        Permission(Operation.WRITE, _TOPIC),
        Permission(Operation.WRITE, _TRANSACTION, "in a transaction"),
    ),
    ApiKey.FETCH: (
        Permission(Operation.READ, _TOPIC),
        Permission(Operation.CLUSTER_ACTION, _CLUSTER, "instead, as a follower"),
    ),
    ApiKey.LIST_OFFSETS: (Permission(Operation.DESCRIBE, _TOPIC),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Permission(Operation.DESCRIBE, _TOPIC),
        Permission(Operation.CLUSTER_ACTION, _CLUSTER, "instead, for all topics"),
    ),
    ApiKey.DELETE_RECORDS: (Permission(Operation.DELETE, _TOPIC),),
    ApiKey.DESCRIBE_PRODUCERS: (Permission(Operation.READ, _TOPIC),),
    # Topics
    ApiKey.METADATA: (
        Permission(Operation.DESCRIBE, _TOPIC, _HIDES),
        Permission(Operation.CREATE, _TOPIC, "to create a missing topic"),
        Permission(Operation.CREATE, _CLUSTER, "instead, for all topics"),
        Permission(Operation.DESCRIBE, _CLUSTER, "for the authorized operations of the cluster"),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (Permission(Operation.DESCRIBE, _TOPIC, _HIDES),),
    ApiKey.CREATE_TOPICS: (
        Permission(Operation.CREATE, _TOPIC),
        Permission(Operation.CREATE, _CLUSTER, "instead, for all topics"),
        Permission(Operation.DESCRIBE_CONFIGS, _TOPIC, "for the settings in the response"),
    ),
    ApiKey.DELETE_TOPICS: (
        Permission(Operation.DELETE, _TOPIC),
        Permission(Operation.DELETE, _CLUSTER, "instead, for all topics"),
        Permission(Operation.DESCRIBE, _TOPIC, "to learn that a topic does not exist, or the name behind an id"),
    ),
    ApiKey.CREATE_PARTITIONS: (Permission(Operation.ALTER, _TOPIC),),
    # Groups
    ApiKey.FIND_COORDINATOR: (
        Permission(Operation.DESCRIBE, _GROUP, "of a group"),
        Permission(Operation.DESCRIBE, _TRANSACTION, "of a transactional id"),
        Permission(Operation.CLUSTER_ACTION, _CLUSTER, "of share groups"),
    ),
    ApiKey.JOIN_GROUP: (Permission(Operation.READ, _GROUP),),
    ApiKey.SYNC_GROUP: (Permission(Operation.READ, _GROUP),),
    ApiKey.HEARTBEAT: (Permission(Operation.READ, _GROUP),),
    ApiKey.LEAVE_GROUP: (Permission(Operation.READ, _GROUP),),
    ApiKey.OFFSET_COMMIT: (Permission(Operation.READ, _GROUP), Permission(Operation.READ, _TOPIC)),
    ApiKey.OFFSET_FETCH: (Permission(Operation.DESCRIBE, _GROUP), Permission(Operation.DESCRIBE, _TOPIC, _HIDES)),
    ApiKey.OFFSET_DELETE: (Permission(Operation.DELETE, _GROUP), Permission(Operation.READ, _TOPIC)),
    ApiKey.DESCRIBE_GROUPS: (Permission(Operation.DESCRIBE, _GROUP),),
    ApiKey.LIST_GROUPS: (
        Permission(Operation.DESCRIBE, _GROUP, "groups without it are left out"),
        Permission(Operation.DESCRIBE, _CLUSTER, "instead, for all groups"),
    ),
    ApiKey.DELETE_GROUPS: (Permission(Operation.DELETE, _GROUP),),
    # Transactions
    ApiKey.INIT_PRODUCER_ID: (
        Permission(Operation.WRITE, _TRANSACTION, "with a transactional id"),
        Permission(Operation.TWO_PHASE_COMMIT, _TRANSACTION, "also, for two-phase commit"),
        Permission(Operation.IDEMPOTENT_WRITE, _CLUSTER, "without a transactional id"),
        Permission(Operation.WRITE, _TOPIC, "instead, on any topic"),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        Permission(Operation.WRITE, _TRANSACTION, "before v4"),
        Permission(Operation.WRITE, _TOPIC, "before v4"),
        Permission(Operation.CLUSTER_ACTION, _CLUSTER, "from v4 on, which brokers send"),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (Permission(Operation.WRITE, _TRANSACTION), Permission(Operation.READ, _GROUP)),
    ApiKey.END_TXN: (Permission(Operation.WRITE, _TRANSACTION),),
    ApiKey.TXN_OFFSET_COMMIT: (
        Permission(Operation.WRITE, _TRANSACTION),
        Permission(Operation.READ, _GROUP),
        Permission(Operation.READ, _TOPIC),
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        Permission(Operation.CLUSTER_ACTION, _CLUSTER),
        Permission(Operation.ALTER, _CLUSTER, "instead"),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        Permission(Operation.DESCRIBE, _TRANSACTION),
        Permission(Operation.DESCRIBE, _TOPIC, "topics without it are left out"),
    ),
    ApiKey.LIST_TRANSACTIONS: (Permission(Operation.DESCRIBE, _TRANSACTION, "transactions without it are left out"),),
    # Settings
    ApiKey.DESCRIBE_CONFIGS: (
        Permission(Operation.DESCRIBE_CONFIGS, _TOPIC, "of a topic"),
        Permission(Operation.DESCRIBE_CONFIGS, _GROUP, "of a group"),
        Permission(Operation.DESCRIBE_CONFIGS, _CLUSTER, "of brokers"),
    ),
    ApiKey.ALTER_CONFIGS: (
        Permission(Operation.ALTER_CONFIGS, _TOPIC, "of a topic"),
        Permission(Operation.ALTER_CONFIGS, _GROUP, "of a group"),
        Permission(Operation.ALTER_CONFIGS, _CLUSTER, "of brokers"),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        Permission(Operation.ALTER_CONFIGS, _TOPIC, "of a topic"),
        Permission(Operation.ALTER_CONFIGS, _GROUP, "of a group"),
        Permission(Operation.ALTER_CONFIGS, _CLUSTER, "of brokers"),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: _cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: _cluster(Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _cluster(Operation.DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _cluster(Operation.ALTER),
    ApiKey.DESCRIBE_ACLS: _cluster(Operation.DESCRIBE),
    ApiKey.CREATE_ACLS: _cluster(Operation.ALTER),
    ApiKey.DELETE_ACLS: _cluster(Operation.ALTER),
    # The cluster
    ApiKey.DESCRIBE_CLUSTER: (Permission(Operation.DESCRIBE, _CLUSTER, "for the authorized operations only"),),
    ApiKey.DESCRIBE_QUORUM: _cluster(Operation.DESCRIBE),
    ApiKey.DESCRIBE_LOG_DIRS: _cluster(Operation.DESCRIBE),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _cluster(Operation.ALTER),
    ApiKey.ELECT_LEADERS: _cluster(Operation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _cluster(Operation.DESCRIBE),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _cluster(Operation.ALTER),
    ApiKey.UPDATE_FEATURES: _cluster(Operation.ALTER),
    ApiKey.UNREGISTER_BROKER: _cluster(Operation.ALTER),
}
