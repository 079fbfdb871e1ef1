"""One request of every API and version that ACLs protect, and the permissions that it takes.

Used to ask two brokers the same, as clients with no, some and all permissions.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ottla.protocol.api import API, ApiKey
from ottla.protocol.messages.create_acls import CreateAclsRequest
from ottla.protocol.records.record_batch import build_batch
from ottla.protocol.schema import Message
from ottla.security.resources import Operation, PatternType, PermissionType, ResourceType
from tests.support.wire.raw import AT

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
CLUSTER_NAME = "kafka-cluster"


class Grant(NamedTuple):
    """One ACL that allows something."""

    operation: Operation
    kind: ResourceType
    name: str


class Names(NamedTuple):
    """What the requests are about: `seen` may be granted, `hidden` never is."""

    seen: str
    hidden: str
    missing: str
    seen_id: bytes
    hidden_id: bytes
    group: str
    hidden_group: str
    transactional_id: str
    hidden_transactional_id: str
    node_id: int


class Case(NamedTuple):
    """A request, and everything that it takes to be answered in full, one permission after the other."""

    label: str
    request: Message
    version: int
    grants: list[Grant]


def creation(
    grant: Grant,
    *,
    host: str,
    principal: str = "User:ANONYMOUS",
    pattern_type: int = PatternType.LITERAL,
    permission: int = PermissionType.ALLOW,
) -> Any:
    return CreateAclsRequest.AclCreation(
        resource_type=grant.kind,
        resource_name=grant.name,
        resource_pattern_type=pattern_type,
        principal=principal,
        host=host,
        operation=grant.operation,
        permission_type=permission,
    )


def requests_of(names: Names) -> Iterator[Case]:
    """Every case in every version. Requests change as little as possible: brokers are shared."""
    for key, make in MAKERS.items():
        for version in API[key].versions:
            for label, request, grants in make(names, version):
                yield Case(f"{API[key].name} v{version}{label and ' ' + label}", request, version, grants)


Made = Iterator[tuple[str, Message, list[Grant]]]
Maker = Callable[[Names, int], Made]
MAKERS: dict[ApiKey, Maker] = {}


def makes(key: ApiKey) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        MAKERS[key] = maker
        return maker

    return register


def _request(key: ApiKey) -> Any:
    return API[key].request


def _on(operation: Operation, kind: ResourceType, name: str) -> Grant:
    return Grant(operation, kind, name)


def _cluster(operation: Operation) -> list[Grant]:
    return [Grant(operation, CLUSTER, CLUSTER_NAME)]


def _topic_fields(names: Names, by_id: bool, name: str = "name") -> list[dict[str, Any]]:
    if by_id:
        return [{"topic_id": names.seen_id}, {"topic_id": names.hidden_id}, {"topic_id": b"\x01" * 16}]
    return [{name: names.seen}, {name: names.hidden}, {name: names.missing}]


def _batch(**more: Any) -> bytes:
    return build_batch([(AT, b"k", b"v", ())], **more)


@makes(ApiKey.PRODUCE)
def produce(names: Names, version: int) -> Made:
    request = _request(ApiKey.PRODUCE)
    topics = _topic_fields(names, version >= 13)

    def data(records: bytes) -> list[Any]:
        return [
            request.TopicProduceData(partition_data=[request.PartitionProduceData(index=0, records=records)], **topic)
            for topic in topics
        ]

    write = _on(Operation.WRITE, TOPIC, names.seen)
    yield "", request(acks=-1, timeout_ms=30_000, topic_data=data(_batch())), [write]
    transactional = _batch(producer_id=1_000_000, producer_epoch=0, base_sequence=0, transactional=True)
    yield (
        "without its transactional id",
        request(acks=-1, timeout_ms=30_000, topic_data=data(transactional)[:2]),
        [write],
    )
    yield (
        "in a transaction",
        request(
            acks=-1, timeout_ms=30_000, transactional_id=names.transactional_id, topic_data=data(transactional)[1:]
        ),
        [_on(Operation.WRITE, TRANSACTIONAL_ID, names.transactional_id)],
    )


@makes(ApiKey.FETCH)
def fetch(names: Names, version: int) -> Made:
    request = _request(ApiKey.FETCH)

    def topics() -> list[Any]:
        return [
            request.FetchTopic(
                partitions=[request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)], **topic
            )
            for topic in _topic_fields(names, version >= 13, "topic")
        ]

    more = {"session_epoch": -1} if version >= 7 else {}
    yield (
        "",
        request(max_wait_ms=0, min_bytes=0, max_bytes=10_000, topics=topics(), **more),
        [_on(Operation.READ, TOPIC, names.seen)],
    )
    if version < 15:
        # From v15 on the replica epoch is checked as well.
        yield (
            "as a follower",
            request(max_wait_ms=0, min_bytes=0, max_bytes=10_000, replica_id=99, topics=topics()[:2], **more),
            [],
        )


@makes(ApiKey.LIST_OFFSETS)
def list_offsets(names: Names, version: int) -> Made:
    request = _request(ApiKey.LIST_OFFSETS)
    topics = [
        request.ListOffsetsTopic(partitions=[request.ListOffsetsPartition(partition_index=0, timestamp=-2)], **topic)
        for topic in _topic_fields(names, False)
    ]
    yield "", request(replica_id=-1, topics=topics), [_on(Operation.DESCRIBE, TOPIC, names.seen)]


@makes(ApiKey.METADATA)
def metadata(names: Names, version: int) -> Made:
    request = _request(ApiKey.METADATA)
    describe = _on(Operation.DESCRIBE, TOPIC, names.seen)
    more: dict[str, Any] = {"include_topic_authorized_operations": True} if version >= 8 else {}
    if 8 <= version <= 10:
        more["include_cluster_authorized_operations"] = True
    cluster = _cluster(Operation.DESCRIBE) if 8 <= version <= 10 else []
    if version >= 4:
        more["allow_auto_topic_creation"] = False
        topics = [request.MetadataRequestTopic(**topic) for topic in _topic_fields(names, False)]
        yield "by name", request(topics=topics, **more), [describe, *cluster]
    if version >= 12:
        topics = [request.MetadataRequestTopic(name=None, **topic) for topic in _topic_fields(names, True)]
        yield "by id", request(topics=topics, **more), [describe]
    yield "of all", request(topics=None if version else [], **more), [describe]
    if version >= 4:
        more["allow_auto_topic_creation"] = True
        topics = [request.MetadataRequestTopic(name=names.missing)]
        yield (
            "to create",
            request(topics=topics, **more),
            [_on(Operation.DESCRIBE, TOPIC, names.missing)],
        )


@makes(ApiKey.OFFSET_COMMIT)
def offset_commit(names: Names, version: int) -> Made:
    request = _request(ApiKey.OFFSET_COMMIT)
    topics = [
        request.OffsetCommitRequestTopic(
            partitions=[request.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)], **topic
        )
        for topic in _topic_fields(names, version >= 10)
    ]
    yield (
        "",
        request(group_id=names.group, generation_id_or_member_epoch=-1, topics=topics),
        [_on(Operation.READ, GROUP, names.group), _on(Operation.READ, TOPIC, names.seen)],
    )


@makes(ApiKey.OFFSET_FETCH)
def offset_fetch(names: Names, version: int) -> Made:
    request = _request(ApiKey.OFFSET_FETCH)
    grants = [_on(Operation.DESCRIBE, GROUP, names.group), _on(Operation.DESCRIBE, TOPIC, names.seen)]
    if version >= 8:
        fields = _topic_fields(names, version >= 10)
        for label, topics in (
            ("", [request.OffsetFetchRequestTopics(partition_indexes=[0], **topic) for topic in fields]),
            ("of all", None),
        ):
            groups = [
                request.OffsetFetchRequestGroup(group_id=group, topics=topics)
                for group in (names.group, names.hidden_group)
            ]
            yield label, request(groups=groups), grants
        return
    topics = [request.OffsetFetchRequestTopic(partition_indexes=[0], **topic) for topic in _topic_fields(names, False)]
    yield "", request(group_id=names.group, topics=topics), grants
    if version >= 2:
        yield "of all", request(group_id=names.group, topics=None), grants


@makes(ApiKey.OFFSET_DELETE)
def offset_delete(names: Names, version: int) -> Made:
    request = _request(ApiKey.OFFSET_DELETE)
    topics = [
        request.OffsetDeleteRequestTopic(partitions=[request.OffsetDeleteRequestPartition(partition_index=7)], **topic)
        for topic in _topic_fields(names, False)[:2]
    ]
    yield (
        "",
        request(group_id=names.group, topics=topics),
        [_on(Operation.DELETE, GROUP, names.group), _on(Operation.READ, TOPIC, names.seen)],
    )


@makes(ApiKey.FIND_COORDINATOR)
def find_coordinator(names: Names, version: int) -> Made:
    request = _request(ApiKey.FIND_COORDINATOR)
    group = _on(Operation.DESCRIBE, GROUP, names.group)
    transaction = _on(Operation.DESCRIBE, TRANSACTIONAL_ID, names.transactional_id)
    if version >= 4:
        yield "of groups", request(key_type=0, coordinator_keys=[names.group, names.hidden_group]), [group]
        keys = [names.transactional_id, names.hidden_transactional_id]
        yield "of transactions", request(key_type=1, coordinator_keys=keys), [transaction]
        return
    yield "of a group", request(key=names.group), [group]
    if version >= 1:
        yield "of a transaction", request(key=names.transactional_id, key_type=1), [transaction]


@makes(ApiKey.JOIN_GROUP)
def join_group(names: Names, version: int) -> Made:
    request = _request(ApiKey.JOIN_GROUP)
    protocols = [request.JoinGroupRequestProtocol(name="range", metadata=b"")]
    # The member is unknown: nobody joins.
    yield (
        "",
        request(
            group_id=names.group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="nobody",
            protocol_type="consumer",
            protocols=protocols,
        ),
        [_on(Operation.READ, GROUP, names.group)],
    )


@makes(ApiKey.SYNC_GROUP)
def sync_group(names: Names, version: int) -> Made:
    request = _request(ApiKey.SYNC_GROUP)
    more = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    yield (
        "",
        request(group_id=names.group, generation_id=1, member_id="nobody", **more),
        [_on(Operation.READ, GROUP, names.group)],
    )


@makes(ApiKey.HEARTBEAT)
def heartbeat(names: Names, version: int) -> Made:
    request = _request(ApiKey.HEARTBEAT)
    yield (
        "",
        request(group_id=names.group, generation_id=1, member_id="nobody"),
        [_on(Operation.READ, GROUP, names.group)],
    )


@makes(ApiKey.LEAVE_GROUP)
def leave_group(names: Names, version: int) -> Made:
    request = _request(ApiKey.LEAVE_GROUP)
    more = {"members": [request.MemberIdentity(member_id="nobody")]} if version >= 3 else {"member_id": "nobody"}
    yield "", request(group_id=names.group, **more), [_on(Operation.READ, GROUP, names.group)]


@makes(ApiKey.DESCRIBE_GROUPS)
def describe_groups(names: Names, version: int) -> Made:
    request = _request(ApiKey.DESCRIBE_GROUPS)
    more = {"include_authorized_operations": True} if version >= 3 else {}
    yield (
        "",
        request(groups=[names.group, names.hidden_group], **more),
        [_on(Operation.DESCRIBE, GROUP, names.group), _on(Operation.DELETE, GROUP, names.group)],
    )


@makes(ApiKey.LIST_GROUPS)
def list_groups(names: Names, version: int) -> Made:
    request = _request(ApiKey.LIST_GROUPS)
    yield "", request(), [_on(Operation.DESCRIBE, GROUP, names.group), *_cluster(Operation.DESCRIBE)]


@makes(ApiKey.DELETE_GROUPS)
def delete_groups(names: Names, version: int) -> Made:
    request = _request(ApiKey.DELETE_GROUPS)
    missing = names.group + "-not"
    yield "", request(groups_names=[missing, names.hidden_group]), [_on(Operation.DELETE, GROUP, missing)]


@makes(ApiKey.CREATE_TOPICS)
def create_topics(names: Names, version: int) -> Made:
    request = _request(ApiKey.CREATE_TOPICS)
    topics = [
        request.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in (names.missing, names.hidden, names.hidden + "-x")
    ]
    yield (
        "",
        request(topics=topics, timeout_ms=30_000, validate_only=True),
        [_on(Operation.CREATE, TOPIC, names.missing), _on(Operation.DESCRIBE_CONFIGS, TOPIC, names.missing)],
    )
    yield (
        "in the cluster",
        request(topics=topics, timeout_ms=30_000, validate_only=True),
        _cluster(Operation.CREATE),
    )


@makes(ApiKey.DELETE_TOPICS)
def delete_topics(names: Names, version: int) -> Made:
    """The resources to delete do not exist: the brokers are shared."""
    request = _request(ApiKey.DELETE_TOPICS)
    grants = [
        _on(Operation.DESCRIBE, TOPIC, names.seen),
        _on(Operation.DESCRIBE, TOPIC, names.missing),
        _on(Operation.DELETE, TOPIC, names.missing),
    ]
    if version < 6:
        yield "", request(topic_names=[names.seen, names.hidden, names.missing], timeout_ms=30_000), grants
        return
    by_name = [request.DeleteTopicState(**topic) for topic in _topic_fields(names, False)]
    yield "", request(topics=by_name, timeout_ms=30_000), grants
    by_id = [request.DeleteTopicState(name=None, **topic) for topic in _topic_fields(names, True)]
    yield "by id", request(topics=by_id, timeout_ms=30_000), grants


@makes(ApiKey.CREATE_PARTITIONS)
def create_partitions(names: Names, version: int) -> Made:
    request = _request(ApiKey.CREATE_PARTITIONS)
    topics = [
        request.CreatePartitionsTopic(name=name, count=5, assignments=None)
        for name in (names.seen, names.hidden, names.missing)
    ]
    yield (
        "",
        request(topics=topics, timeout_ms=30_000, validate_only=True),
        [_on(Operation.ALTER, TOPIC, names.seen)],
    )


@makes(ApiKey.DELETE_RECORDS)
def delete_records(names: Names, version: int) -> Made:
    request = _request(ApiKey.DELETE_RECORDS)
    topics = [
        request.DeleteRecordsTopic(partitions=[request.DeleteRecordsPartition(partition_index=0, offset=0)], **topic)
        for topic in _topic_fields(names, False)
    ]
    yield "", request(topics=topics, timeout_ms=30_000), [_on(Operation.DELETE, TOPIC, names.seen)]


@makes(ApiKey.INIT_PRODUCER_ID)
def init_producer_id(names: Names, version: int) -> Made:
    request = _request(ApiKey.INIT_PRODUCER_ID)
    yield "idempotent", request(transactional_id=None), _cluster(Operation.IDEMPOTENT_WRITE)
    yield "with any topic", request(transactional_id=None), [_on(Operation.WRITE, TOPIC, names.hidden + "-never")]
    yield (
        "transactional",
        request(transactional_id=names.transactional_id, transaction_timeout_ms=60_000),
        [_on(Operation.WRITE, TRANSACTIONAL_ID, names.transactional_id)],
    )


@makes(ApiKey.ADD_PARTITIONS_TO_TXN)
def add_partitions_to_txn(names: Names, version: int) -> Made:
    request = _request(ApiKey.ADD_PARTITIONS_TO_TXN)
    topics = [
        request.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in (names.seen, names.hidden, names.missing)
    ]
    if version >= 4:
        transaction = request.AddPartitionsToTxnTransaction(
            transactional_id=names.transactional_id, producer_id=1, producer_epoch=0, topics=topics
        )
        yield "", request(transactions=[transaction]), []
        return
    yield (
        "",
        request(
            v3_and_below_transactional_id=names.transactional_id,
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        ),
        [_on(Operation.WRITE, TRANSACTIONAL_ID, names.transactional_id), _on(Operation.WRITE, TOPIC, names.seen)],
    )


@makes(ApiKey.ADD_OFFSETS_TO_TXN)
def add_offsets_to_txn(names: Names, version: int) -> Made:
    request = _request(ApiKey.ADD_OFFSETS_TO_TXN)
    yield (
        "",
        request(transactional_id=names.transactional_id, producer_id=1, producer_epoch=0, group_id=names.group),
        [_on(Operation.WRITE, TRANSACTIONAL_ID, names.transactional_id), _on(Operation.READ, GROUP, names.group)],
    )


@makes(ApiKey.END_TXN)
def end_txn(names: Names, version: int) -> Made:
    request = _request(ApiKey.END_TXN)
    yield (
        "",
        request(transactional_id=names.transactional_id, producer_id=1, producer_epoch=0, committed=True),
        [_on(Operation.WRITE, TRANSACTIONAL_ID, names.transactional_id)],
    )


@makes(ApiKey.TXN_OFFSET_COMMIT)
def txn_offset_commit(names: Names, version: int) -> Made:
    request = _request(ApiKey.TXN_OFFSET_COMMIT)
    topics = [
        request.TxnOffsetCommitRequestTopic(
            partitions=[request.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)], **topic
        )
        for topic in _topic_fields(names, version >= 6)[:2]
    ]
    yield (
        "",
        request(
            transactional_id=names.transactional_id,
            group_id=names.group,
            producer_id=1,
            producer_epoch=0,
            topics=topics,
        ),
        [
            _on(Operation.WRITE, TRANSACTIONAL_ID, names.transactional_id),
            _on(Operation.READ, GROUP, names.group),
        ],
    )


@makes(ApiKey.WRITE_TXN_MARKERS)
def write_txn_markers(names: Names, version: int) -> Made:
    request = _request(ApiKey.WRITE_TXN_MARKERS)
    marker = request.WritableTxnMarker(
        producer_id=7,
        topics=[request.WritableTxnMarkerTopic(name=names.missing, partition_indexes=[0])],
    )
    yield "", request(markers=[marker]), _cluster(Operation.ALTER)
    yield "as a broker", request(markers=[marker]), _cluster(Operation.CLUSTER_ACTION)


@makes(ApiKey.DESCRIBE_TRANSACTIONS)
def describe_transactions(names: Names, version: int) -> Made:
    request = _request(ApiKey.DESCRIBE_TRANSACTIONS)
    missing = names.transactional_id + "-not"
    yield (
        "",
        request(transactional_ids=[missing, names.hidden_transactional_id]),
        [_on(Operation.DESCRIBE, TRANSACTIONAL_ID, missing)],
    )


@makes(ApiKey.LIST_TRANSACTIONS)
def list_transactions(names: Names, version: int) -> Made:
    request = _request(ApiKey.LIST_TRANSACTIONS)
    yield "", request(), [_on(Operation.DESCRIBE, TRANSACTIONAL_ID, names.hidden_transactional_id)]


@makes(ApiKey.DESCRIBE_PRODUCERS)
def describe_producers(names: Names, version: int) -> Made:
    request = _request(ApiKey.DESCRIBE_PRODUCERS)
    topics = [request.TopicRequest(partition_indexes=[0], **topic) for topic in _topic_fields(names, False)]
    yield "", request(topics=topics), [_on(Operation.READ, TOPIC, names.seen)]


def _config_resources(names: Names) -> list[tuple[int, str]]:
    node = str(names.node_id)
    return [(2, names.seen), (2, names.hidden), (2, names.missing), (4, node), (4, ""), (8, node), (32, names.group)]


def _config_grants(names: Names, operation: Operation) -> list[Grant]:
    return [_on(operation, TOPIC, names.seen), *_cluster(operation), _on(operation, GROUP, names.group)]


@makes(ApiKey.DESCRIBE_CONFIGS)
def describe_configs(names: Names, version: int) -> Made:
    request = _request(ApiKey.DESCRIBE_CONFIGS)
    resources = [
        request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=["retention.ms"])
        for kind, name in _config_resources(names)
    ]
    yield "", request(resources=resources), _config_grants(names, Operation.DESCRIBE_CONFIGS)


@makes(ApiKey.ALTER_CONFIGS)
def alter_configs(names: Names, version: int) -> Made:
    request = _request(ApiKey.ALTER_CONFIGS)
    config = request.AlterableConfig(name="retention.ms", value="5000000")
    resources = [
        request.AlterConfigsResource(resource_type=2, resource_name=name, configs=[config])
        for name in (names.seen, names.hidden, names.missing)
    ]
    yield (
        "",
        request(resources=resources, validate_only=True),
        [_on(Operation.ALTER_CONFIGS, TOPIC, names.seen)],
    )


@makes(ApiKey.INCREMENTAL_ALTER_CONFIGS)
def incremental_alter_configs(names: Names, version: int) -> Made:
    request = _request(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    values = {2: ("retention.ms", "5000000"), 4: ("log.cleaner.threads", "1"), 8: ("root", "INFO")}
    resources = [
        request.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[request.AlterableConfig(name=values[kind][0], value=values[kind][1])],
        )
        for kind, name in _config_resources(names)
        if kind in (2, 4)
    ]
    yield (
        "",
        request(resources=resources, validate_only=True),
        _config_grants(names, Operation.ALTER_CONFIGS)[:2],
    )


@makes(ApiKey.LIST_CONFIG_RESOURCES)
def list_config_resources(names: Names, version: int) -> Made:
    request = _request(ApiKey.LIST_CONFIG_RESOURCES)
    more = {"resource_types": [4]} if version >= 1 else {}
    yield "", request(**more), _cluster(Operation.DESCRIBE_CONFIGS)


@makes(ApiKey.ELECT_LEADERS)
def elect_leaders(names: Names, version: int) -> Made:
    request = _request(ApiKey.ELECT_LEADERS)
    topics = [request.TopicPartitions(topic=name, partitions=[0]) for name in (names.hidden, names.missing)]
    yield "", request(topic_partitions=topics, timeout_ms=30_000), _cluster(Operation.ALTER)


@makes(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
def alter_partition_reassignments(names: Names, version: int) -> Made:
    request = _request(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    topics = [
        request.ReassignableTopic(
            name=name, partitions=[request.ReassignablePartition(partition_index=0, replicas=None)]
        )
        for name in (names.hidden, names.missing)
    ]
    yield "", request(topics=topics, timeout_ms=30_000), _cluster(Operation.ALTER)


@makes(ApiKey.LIST_PARTITION_REASSIGNMENTS)
def list_partition_reassignments(names: Names, version: int) -> Made:
    request = _request(ApiKey.LIST_PARTITION_REASSIGNMENTS)
    yield "", request(topics=None, timeout_ms=30_000), _cluster(Operation.DESCRIBE)


@makes(ApiKey.DESCRIBE_LOG_DIRS)
def describe_log_dirs(names: Names, version: int) -> Made:
    request = _request(ApiKey.DESCRIBE_LOG_DIRS)
    topics = [request.DescribableLogDirTopic(topic=names.hidden, partitions=[0])]
    yield "", request(topics=topics), _cluster(Operation.DESCRIBE)


@makes(ApiKey.ALTER_REPLICA_LOG_DIRS)
def alter_replica_log_dirs(names: Names, version: int) -> Made:
    request = _request(ApiKey.ALTER_REPLICA_LOG_DIRS)
    topics = [request.AlterReplicaLogDirTopic(name=names.hidden, partitions=[0])]
    directory = request.AlterReplicaLogDir(path="/no/such/directory", topics=topics)
    yield "", request(dirs=[directory]), _cluster(Operation.ALTER)


@makes(ApiKey.DESCRIBE_CLUSTER)
def describe_cluster(names: Names, version: int) -> Made:
    request = _request(ApiKey.DESCRIBE_CLUSTER)
    yield (
        "",
        request(include_cluster_authorized_operations=True),
        [*_cluster(Operation.ALTER), *_cluster(Operation.CREATE)],
    )


@makes(ApiKey.DESCRIBE_QUORUM)
def describe_quorum(names: Names, version: int) -> Made:
    """Only refusals are compared: other answers are about KRaft."""
    request = _request(ApiKey.DESCRIBE_QUORUM)
    topic = request.TopicData(topic_name="__cluster_metadata", partitions=[request.PartitionData(partition_index=0)])
    yield "", request(topics=[topic]), []


@makes(ApiKey.UPDATE_FEATURES)
def update_features(names: Names, version: int) -> Made:
    request = _request(ApiKey.UPDATE_FEATURES)
    update = request.FeatureUpdateKey(feature="no.such", max_version_level=1, upgrade_type=1)
    yield "", request(feature_updates=[update]), _cluster(Operation.ALTER)


@makes(ApiKey.UNREGISTER_BROKER)
def unregister_broker(names: Names, version: int) -> Made:
    yield "", _request(ApiKey.UNREGISTER_BROKER)(broker_id=77), _cluster(Operation.ALTER)


@makes(ApiKey.OFFSET_FOR_LEADER_EPOCH)
def offset_for_leader_epoch(names: Names, version: int) -> Made:
    request = _request(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    topics = [
        request.OffsetForLeaderTopic(
            partitions=[request.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=9)], **topic
        )
        for topic in _topic_fields(names, False, "topic")
    ]
    yield "", request(replica_id=-1, topics=topics), [_on(Operation.DESCRIBE, TOPIC, names.seen)]
    yield "as a broker", request(replica_id=-1, topics=topics), _cluster(Operation.CLUSTER_ACTION)


@makes(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
def describe_topic_partitions(names: Names, version: int) -> Made:
    request = _request(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    describe = [_on(Operation.DESCRIBE, TOPIC, names.seen), _on(Operation.WRITE, TOPIC, names.seen)]
    topics = [request.TopicRequest(**topic) for topic in _topic_fields(names, False)]
    yield "", request(topics=topics, response_partition_limit=100), describe
    yield "of all", request(topics=[], response_partition_limit=100), describe


@makes(ApiKey.DESCRIBE_ACLS)
def describe_acls(names: Names, version: int) -> Made:
    request = _request(ApiKey.DESCRIBE_ACLS)
    yield (
        "",
        request(
            resource_type_filter=TOPIC,
            resource_name_filter=names.hidden,
            pattern_type_filter=PatternType.LITERAL,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
        _cluster(Operation.DESCRIBE),
    )


@makes(ApiKey.CREATE_ACLS)
def create_acls(names: Names, version: int) -> Made:
    request = _request(ApiKey.CREATE_ACLS)
    invalid = creation(_on(Operation.READ, CLUSTER, "another"), host="*")
    yield "", request(creations=[invalid]), _cluster(Operation.ALTER)


@makes(ApiKey.DELETE_ACLS)
def delete_acls(names: Names, version: int) -> Made:
    request = _request(ApiKey.DELETE_ACLS)
    nothing = request.DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter=names.hidden + "-never",
        pattern_type_filter=PatternType.LITERAL,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    yield "", request(filters=[nothing]), _cluster(Operation.ALTER)


@makes(ApiKey.API_VERSIONS)
def api_versions(names: Names, version: int) -> Made:
    """Everyone may ask; what differs between brokers is not compared here."""
    yield from ()


@makes(ApiKey.DESCRIBE_CLIENT_QUOTAS)
def describe_client_quotas(names: Names, version: int) -> Made:
    request = _request(ApiKey.DESCRIBE_CLIENT_QUOTAS)
    component = request.ComponentData(entity_type="user", match_type=0, match=names.hidden)
    yield "", request(components=[component]), _cluster(Operation.DESCRIBE_CONFIGS)


@makes(ApiKey.ALTER_CLIENT_QUOTAS)
def alter_client_quotas(names: Names, version: int) -> Made:
    request = _request(ApiKey.ALTER_CLIENT_QUOTAS)
    entry = request.EntryData(
        entity=[request.EntityData(entity_type="user", entity_name=names.hidden)],
        ops=[request.OpData(key="producer_byte_rate", value=1000.0)],
    )
    yield "", request(entries=[entry], validate_only=True), _cluster(Operation.ALTER_CONFIGS)


@makes(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
def describe_user_scram_credentials(names: Names, version: int) -> Made:
    request = _request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
    yield "", request(users=[request.UserName(name=names.hidden)]), _cluster(Operation.DESCRIBE)


@makes(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
def alter_user_scram_credentials(names: Names, version: int) -> Made:
    request = _request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    deletion = request.ScramCredentialDeletion(name=names.hidden, mechanism=1)
    yield "", request(deletions=[deletion]), _cluster(Operation.ALTER)


@makes(ApiKey.SASL_HANDSHAKE)
@makes(ApiKey.SASL_AUTHENTICATE)
def sasl(names: Names, version: int) -> Made:
    """Sent before a client has an identity."""
    yield from ()
