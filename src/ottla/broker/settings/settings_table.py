"""Every broker setting, under Kafka's names with Kafka's defaults. Pure.

`broker/settings/config.py` reads them from a file, overrides them with changes made at run time, and describes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ottla.broker.settings.authorizer_settings import AUTHORIZERS, are_principals
from ottla.broker.settings.security_settings import SecurityConfig
from ottla.config import setting
from ottla.coordinator.group.config import GroupConfig
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.log.config import topic_default
from ottla.metadata.config import ControllerConfig
from ottla.replication.config import ReplicaConfig
from ottla.security.quota_config import QuotaConfig
from ottla.types import INT32_MAX, INT64_MAX


@dataclass(init=False, repr=False, eq=False)
class BrokerConfig(ReplicaConfig, ControllerConfig, GroupConfig, TransactionConfig, QuotaConfig, SecurityConfig):
    """Every setting of a broker; immutable. `read_only=False` marks settings that can be changed at run time.

    Each setting is declared once. Those that one component uses are declared in the config of that component, which
    this class inherits: a BrokerConfig is passed wherever a ReplicaConfig, ControllerConfig, GroupConfig,
    TransactionConfig, QuotaConfig or SecurityConfig is expected.
    """

    def __init__(self, *, given: Mapping[str, str] | None = None, notices: tuple[str, ...] = (), **values: Any) -> None:
        """`given` holds the user's settings as text, under the names the user wrote. `notices` lists those that are
        accepted but have no effect."""
        super().__init__(**values)
        self.__dict__.update(given=given or {}, notices=notices)

    if TYPE_CHECKING:
        given: ClassVar[Mapping[str, str]]
        notices: ClassVar[tuple[str, ...]]

    # Identity and addresses

    node_id: int = setting("node.id", 0, "This broker's id, unique in the cluster; broker.id is an alias.", at_least=0)
    broker_rack: str | None = setting("broker.rack", None, "The rack of this broker; replicas are spread over racks.")
    log_dirs: tuple[str, ...] = setting("log.dirs", ("/tmp/ottla-logs",), "The data directory; log.dir is an alias.")
    metadata: str | None = setting(
        "ottla.metadata",
        None,
        "Where the cluster's metadata is: a file, for brokers of one host, or etcd://HOST:PORT,HOST:PORT/PREFIX "
        "(etcds:// with TLS). Brokers with the same metadata form a cluster; not set: inside the data directory.",
    )
    listeners: tuple[str, ...] = setting(
        "listeners",
        ("PLAINTEXT://:9092",),
        "Where to listen: NAME://host:port, separated by commas; an empty host means every interface.",
    )
    advertised_listeners: tuple[str, ...] | None = setting(
        "advertised.listeners", None, "The addresses that clients connect to, if they differ from listeners."
    )
    listener_security_protocol_map: str = setting(
        "listener.security.protocol.map",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "The protocol of each listener name: NAME:PROTOCOL, separated by commas.",
    )
    inter_broker_listener_name: str | None = setting(
        "inter.broker.listener.name", None, "The listener that other brokers use; default: the first one."
    )
    controller_listener_names: tuple[str, ...] = setting(
        "controller.listener.names",
        (),
        "Listeners of an Apache Kafka controller; ignored, because every broker is a controller.",
    )

    # Connections

    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes", 104_857_600, "The largest request; a larger one closes the connection.", at_least=1
    )
    socket_listen_backlog_size: int = setting(
        "socket.listen.backlog.size", 50, "How many connections may wait to be accepted.", at_least=1
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        600_000,
        "A connection that is idle for this long is closed (-1: never).",
        kind="long",
    )
    max_connections: int = setting(
        "max.connections", INT32_MAX, "The most connections at the same time.", at_least=0, read_only=False
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        INT32_MAX,
        "The most connections at the same time from one address.",
        at_least=0,
        read_only=False,
    )

    # Requests

    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        57_671_680,
        "The largest fetch response, whatever the client requests.",
        at_least=1024,
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        "max.incremental.fetch.session.cache.slots", 1000, "The most fetch sessions at the same time.", at_least=0
    )
    max_request_partition_size_limit: int = setting(
        "max.request.partition.size.limit",
        2000,
        "The most partitions in one DescribeTopicPartitions response.",
        at_least=1,
    )
    request_timeout_ms: int = setting(
        "request.timeout.ms", 30_000, "How long a broker waits for a response from another broker.", at_least=0
    )

    # Topics

    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        True,
        "Whether a metadata request for an unknown topic creates it, if the client allows it.",
    )
    num_partitions: int = setting("num.partitions", 1, "Default number of partitions of a new topic.", at_least=1)
    default_replication_factor: int = setting(
        "default.replication.factor", 1, "Default number of replicas of a new topic.", at_least=1
    )
    delete_topic_enable: bool = setting("delete.topic.enable", True, "Whether topics can be deleted.")

    # The log: defaults of topic settings. message.max.bytes is in GroupConfig, which uses it too.

    compression_type: str = topic_default("compression.type")
    compression_gzip_level: int = topic_default("compression.gzip.level")
    compression_lz4_level: int = topic_default("compression.lz4.level")
    compression_zstd_level: int = topic_default("compression.zstd.level")
    min_insync_replicas: int = topic_default("min.insync.replicas")
    unclean_leader_election_enable: bool = topic_default("unclean.leader.election.enable")
    max_decompressed_bytes: int = topic_default("ottla.max.decompressed.bytes")
    log_cleanup_policy: tuple[str, ...] = topic_default("cleanup.policy")
    log_cleaner_delete_retention_ms: int = topic_default("delete.retention.ms")
    log_cleaner_max_compaction_lag_ms: int = topic_default("max.compaction.lag.ms")
    log_cleaner_min_cleanable_ratio: float = topic_default("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = topic_default("min.compaction.lag.ms")
    log_flush_interval_messages: int = topic_default("flush.messages")
    log_index_interval_bytes: int = topic_default("index.interval.bytes")
    log_index_size_max_bytes: int = topic_default("segment.index.bytes")
    log_message_timestamp_after_max_ms: int = topic_default("message.timestamp.after.max.ms")
    log_message_timestamp_before_max_ms: int = topic_default("message.timestamp.before.max.ms")
    log_message_timestamp_type: str = topic_default("message.timestamp.type")
    log_preallocate: bool = topic_default("preallocate")
    log_retention_bytes: int = topic_default("retention.bytes")
    log_segment_bytes: int = topic_default("segment.bytes")
    log_segment_delete_delay_ms: int = topic_default("file.delete.delay.ms")

    # Settings with several names, the finest unit first; the first one that is set is used.

    log_retention_ms: int | None = setting(
        "log.retention.ms",
        None,
        "Default of the topic setting retention.ms (-1: never).",
        kind="long",
        check=lambda value: value != 0,
        rule="must be -1 (never) or at least 1",
        read_only=False,
    )
    log_retention_minutes: int | None = setting(
        "log.retention.minutes", None, "The same in minutes, if log.retention.ms is not set."
    )
    log_retention_hours: int = setting(
        "log.retention.hours", 168, "The same in hours, if neither log.retention.ms nor log.retention.minutes is set."
    )
    log_roll_ms: int | None = setting(
        "log.roll.ms", None, "Default of the topic setting segment.ms.", kind="long", at_least=1, read_only=False
    )
    log_roll_hours: int = setting("log.roll.hours", 168, "The same in hours, if log.roll.ms is not set.", at_least=1)
    log_roll_jitter_ms: int | None = setting(
        "log.roll.jitter.ms",
        None,
        "Default of the topic setting segment.jitter.ms.",
        kind="long",
        at_least=0,
        read_only=False,
    )
    log_roll_jitter_hours: int = setting(
        "log.roll.jitter.hours", 0, "The same in hours, if log.roll.jitter.ms is not set.", at_least=0
    )
    log_flush_interval_ms: int | None = setting(
        "log.flush.interval.ms",
        None,
        "Default of the topic setting flush.ms.",
        kind="long",
        at_least=0,
        read_only=False,
    )
    log_flush_scheduler_interval_ms: int = setting(
        "log.flush.scheduler.interval.ms",
        INT64_MAX,
        "Used if log.flush.interval.ms is not set.",
        kind="long",
    )

    # Groups and offsets

    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets.", at_least=1
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        3,
        "Replicas of __consumer_offsets. If set, the topic is created once there are that many brokers; the default is "
        "lowered to the number of brokers.",
        kind="short",
        at_least=1,
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes", 104_857_600, "Segment size of __consumer_offsets.", at_least=1_048_576
    )
    offsets_topic_compression_codec: int = setting(
        "offsets.topic.compression.codec",
        0,
        "How __consumer_offsets is compressed: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        at_least=0,
        at_most=4,
    )
    offsets_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms", 5000, "How long a commit may wait for its replicas.", at_least=1
    )
    group_coordinator_rebalance_protocols: tuple[str, ...] = setting(
        "group.coordinator.rebalance.protocols",
        ("classic",),
        "The enabled group protocols. Only classic is served; others are accepted with a notice and dropped.",
        choices=("classic", "consumer", "share", "streams"),
        check=lambda protocols: "classic" in protocols,
        rule="classic cannot be disabled",
    )

    # Transactions

    transaction_state_log_num_partitions: int = setting(
        "transaction.state.log.num.partitions", 50, "Partitions of __transaction_state.", at_least=1
    )
    transaction_state_log_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        3,
        "Replicas of __transaction_state. If set, the topic is created once there are that many brokers; the default "
        "is lowered to the number of brokers.",
        kind="short",
        at_least=1,
    )
    transaction_state_log_min_isr: int = setting(
        "transaction.state.log.min.isr",
        2,
        "min.insync.replicas of __transaction_state; with fewer replicas, all of them are enough.",
        at_least=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes", 104_857_600, "Segment size of __transaction_state.", at_least=1_048_576
    )
    transaction_partition_verification_enable: bool = setting(
        "transaction.partition.verification.enable",
        True,
        "Whether a leader verifies with the coordinator that a write belongs to an open transaction (KIP-890).",
        read_only=False,
    )

    # Authorization

    authorizer_class_name: str = setting(
        "authorizer.class.name",
        "",
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer turns ACLs on; not set: everyone may do everything.",
        check=lambda name: not name or name in AUTHORIZERS,
        rule=f"only {AUTHORIZERS[0]} is supported; without the setting everyone may do everything",
    )
    super_users: str = setting(
        "super.users",
        "",
        "Principals that may do everything: User:alice;User:bob. The brokers of a cluster must be among them.",
        check=are_principals,
        rule="must be principals separated by semicolons, for example User:alice;User:bob",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        "allow.everyone.if.no.acl.found", False, "Whether everyone may use a resource that has no ACLs."
    )

    # Ottla's own

    unread_responses_max_bytes: int = setting(
        "ottla.unread.responses.max.bytes",
        67_108_864,
        "Memory for responses that clients have not read, of all connections; beyond it the slowest are disconnected.",
        kind="long",
        at_least=1_048_576,
    )
    incomplete_requests_max_bytes: int = setting(
        "ottla.incomplete.requests.max.bytes",
        134_217_728,
        "Memory for requests that have not arrived completely, of all connections (at least "
        "socket.request.max.bytes); beyond it the slowest are disconnected.",
        kind="long",
        at_least=1_048_576,
    )
    metrics_listen: str | None = setting(
        "ottla.metrics.listen",
        None,
        "host:port of the pages /metrics (for Prometheus), /healthz, /readyz and /safe-to-stop; not set: none.",
    )
    insecure: tuple[str, ...] = setting(
        "ottla.insecure",
        (),
        "What other machines may reach without TLS and SASL: listeners, metrics. `--insecure` stands for both.",
        choices=("listeners", "metrics"),
    )
    slow_step_ms: int = setting(
        "ottla.slow.step.ms",
        250,
        "A step of the event loop that takes longer is logged with its cause (0: steps are not watched).",
        at_least=0,
    )
    slow_step_log_interval_ms: int = setting(
        "ottla.slow.step.log.interval.ms",
        10_000,
        "At most one slow step is logged in this time; the others are counted.",
        at_least=0,
    )
