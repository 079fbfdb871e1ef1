"""Every API by its key: name, versions and message classes, which are imported on first use. Pure."""

import enum
import importlib
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ottla.protocol.schema import Message


class ApiKey(enum.IntEnum):
    """The number at the start of each request."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


class Api(NamedTuple):
    """One API. `max_version` is the newest that its table defines.

    The broker serves every version if `broker/handlers/` has a file for the API, else none.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_since: int | None
    package: str | None = "messages"
    """Where its message table is, below `ottla.protocol`. None: there is no table."""

    def is_flexible(self, version: int) -> bool:
        return self.flexible_since is not None and version >= self.flexible_since

    @property
    def versions(self) -> range:
        return range(self.min_version, self.max_version + 1)

    @property
    def request(self) -> "type[Message]":
        """The class of its requests."""
        return _message(self, "Request")

    @property
    def response(self) -> "type[Message]":
        """The class of its responses."""
        return _message(self, "Response")


_loaded: "dict[tuple[int, str], type[Message]]" = {}


def _message(api: Api, kind: str) -> "type[Message]":
    found = _loaded.get((api.key, kind))
    if found is None:
        if api.package is None:
            raise LookupError(f"there is no message table for {api.name}")
        module = importlib.import_module(f"ottla.protocol.{api.package}.{snake_case(api.name)}")
        found = _loaded[api.key, kind] = getattr(module, api.name + kind)
    return found


def snake_case(name: str) -> str:
    """Kafka's name of a message or field as a Python name.

    >>> snake_case("OffsetForLeaderEpoch"), snake_case("KRaftVersionFeature")
    ('offset_for_leader_epoch', 'kraft_version_feature')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("KRaft", "Kraft")).lower()


# Key, name, first and last version, first flexible version, then where the message table is: in messages/, in
# messages/unserved/, or nowhere (`-`; messages/unserved/__init__.py says why). Keys 4 to 7 were removed with ZooKeeper.
_TABLE = """
     0 Produce                                3 13   9
     1 Fetch                                  4 18  12
     2 ListOffsets                            1 11   6
     3 Metadata                               0 13   9
     8 OffsetCommit                           2 10   8
     9 OffsetFetch                            1 10   6
    10 FindCoordinator                        0  6   3
    11 JoinGroup                              0  9   6
    12 Heartbeat                              0  4   4
    13 LeaveGroup                             0  5   4
    14 SyncGroup                              0  5   4
    15 DescribeGroups                         0  6   5
    16 ListGroups                             0  5   3
    17 SaslHandshake                          0  1   -
    18 ApiVersions                            0  5   3
    19 CreateTopics                           2  7   5
    20 DeleteTopics                           1  6   4
    21 DeleteRecords                          0  2   2
    22 InitProducerId                         0  6   2
    23 OffsetForLeaderEpoch                   2  4   4
    24 AddPartitionsToTxn                     0  5   3
    25 AddOffsetsToTxn                        0  4   3
    26 EndTxn                                 0  5   3
    27 WriteTxnMarkers                        1  2   1
    28 TxnOffsetCommit                        0  6   3
    29 DescribeAcls                           1  3   2
    30 CreateAcls                             1  3   2
    31 DeleteAcls                             1  3   2
    32 DescribeConfigs                        1  4   4
    33 AlterConfigs                           0  2   2
    34 AlterReplicaLogDirs                    1  2   2
    35 DescribeLogDirs                        1  5   2
    36 SaslAuthenticate                       0  2   2
    37 CreatePartitions                       0  3   2
    38 CreateDelegationToken                  1  3   2  -
    39 RenewDelegationToken                   1  2   2  -
    40 ExpireDelegationToken                  1  2   2  -
    41 DescribeDelegationToken                1  3   2  -
    42 DeleteGroups                           0  3   2
    43 ElectLeaders                           0  2   2
    44 IncrementalAlterConfigs                0  1   1
    45 AlterPartitionReassignments            0  1   0
    46 ListPartitionReassignments             0  0   0
    47 OffsetDelete                           0  0   -
    48 DescribeClientQuotas                   0  1   1
    49 AlterClientQuotas                      0  1   1
    50 DescribeUserScramCredentials           0  0   0
    51 AlterUserScramCredentials              0  0   0
    52 Vote                                   0  2   0  -
    53 BeginQuorumEpoch                       0  1   1  -
    54 EndQuorumEpoch                         0  1   1  -
    55 DescribeQuorum                         0  2   0
    56 AlterPartition                         2  3   0  unserved
    57 UpdateFeatures                         0  2   0
    58 Envelope                               0  0   0  -
    59 FetchSnapshot                          0  1   0  -
    60 DescribeCluster                        0  2   0
    61 DescribeProducers                      0  0   0
    62 BrokerRegistration                     0  4   0  -
    63 BrokerHeartbeat                        0  2   0  -
    64 UnregisterBroker                       0  0   0
    65 DescribeTransactions                   0  0   0
    66 ListTransactions                       0  2   0
    67 AllocateProducerIds                    0  0   0  -
    68 ConsumerGroupHeartbeat                 0  1   0  unserved
    69 ConsumerGroupDescribe                  0  1   0
    70 ControllerRegistration                 0  0   0  -
    71 GetTelemetrySubscriptions              0  0   0  -
    72 PushTelemetry                          0  0   0  -
    73 AssignReplicasToDirs                   0  0   0  -
    74 ListConfigResources                    0  1   0
    75 DescribeTopicPartitions                0  0   0
    76 ShareGroupHeartbeat                    1  1   0  unserved
    77 ShareGroupDescribe                     1  1   0  unserved
    78 ShareFetch                             1  2   0  unserved
    79 ShareAcknowledge                       1  2   0  unserved
    80 AddRaftVoter                           0  1   0  -
    81 RemoveRaftVoter                        0  0   0  -
    82 UpdateRaftVoter                        0  0   0  -
    83 InitializeShareGroupState              0  0   0  unserved
    84 ReadShareGroupState                    0  0   0  unserved
    85 WriteShareGroupState                   0  1   0  unserved
    86 DeleteShareGroupState                  0  0   0  unserved
    87 ReadShareGroupStateSummary             0  1   0  unserved
    88 StreamsGroupHeartbeat                  0  1   0  -
    89 StreamsGroupDescribe                   0  1   0  -
    90 DescribeShareGroupOffsets              0  1   0  unserved
    91 AlterShareGroupOffsets                 0  0   0  unserved
    92 DeleteShareGroupOffsets                0  0   0  unserved
    93 StreamsGroupTopologyDescriptionUpdate  0  0   0  -
    94 UnregisterController                   0  0   0  -
"""

API: dict[int, Api] = {}
for _line in _TABLE.strip().splitlines():
    _key, _name, _first, _last, _flexible, *_place = _line.split()
    _package = {"": "messages", "unserved": "messages.unserved", "-": None}["".join(_place)]
    _since = None if _flexible == "-" else int(_flexible)
    API[int(_key)] = Api(int(_key), _name, int(_first), int(_last), _since, _package)

BEFORE_AUTHENTICATION = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""Requests of clients whose user is not known yet. As in Kafka, quotas do not count them."""
