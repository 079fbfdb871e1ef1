"""Settings of Apache Kafka that have no effect here: accepted, so that existing files and tools can be used. Pure."""

from ottla.config import Setting, looks_secret

UNUSED = frozenset(
    """
    advertised.host.name
    advertised.port alter.config.policy.class.name auto.include.jmx.reporter background.threads
    broker.heartbeat.interval.ms broker.id.generation.enable client.quota.callback.class config.providers
    controlled.shutdown.enable
    controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms controller.socket.timeout.ms
    cordoned.log.dirs create.topic.policy.class.name delete.records.purgatory.purge.interval.requests
    early.start.listeners eligible.leader.replicas.enable fetch.purgatory.purge.interval.requests
    follower.fetch.last.tiered.offset.enable group.coordinator.append.linger.ms
    group.coordinator.background.threads group.coordinator.cached.buffer.max.bytes group.coordinator.new.enable
    group.coordinator.threads initial.broker.registration.timeout.ms inter.broker.protocol.version
    leader.imbalance.per.broker.percentage log.cleaner.dedupe.buffer.size
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
    log.cleaner.threads log.dir.failure.timeout.ms log.flush.offset.checkpoint.interval.ms
    log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms log.message.downconversion.enable
    log.message.format.version log.message.timestamp.difference.max.ms
    max.connections.per.ip.overrides num.io.threads num.network.threads num.recovery.threads.per.data.dir
    num.replica.alter.log.dirs.threads num.replica.fetchers offsets.commit.required.acks offsets.load.buffer.size
    password.encoder.cipher.algorithm password.encoder.iterations password.encoder.key.length
    password.encoder.keyfactory.algorithm password.encoder.old.secret password.encoder.secret
    principal.builder.class process.roles producer.purgatory.purge.interval.requests queued.max.request.bytes
    queued.max.requests replica.socket.receive.buffer.bytes
    reserved.broker.max.id security.providers server.max.startup.time.ms
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms socket.receive.buffer.bytes
    socket.send.buffer.bytes transaction.state.log.load.buffer.size unclean.leader.election.interval.ms
    unstable.api.versions.enable unstable.feature.versions.enable
    """.split()  # noqa: SIM905
)
"""Settings of Apache Kafka without effect here: accepted with a notice, so that existing files can be used."""

UNUSED_PREFIXES = (
    "alter.log.dirs.", "confluent.", "controller.quorum.", "delegation.token.", "group.consumer.",
    "group.share.", "group.streams.", "kafka.metrics.", "listener.name.", "log.local.retention.", "metadata.log.",
    "metadata.max.", "metric.reporters", "metrics.", "remote.", "replica.alter.log.dirs.",
    "replication.quota.", "sasl.", "share.", "ssl.", "telemetry.", "zookeeper.",
)  # fmt: skip

UNUSED_AT_RUN_TIME = {
    "background.threads": "int",
    "follower.fetch.last.tiered.offset.enable": "boolean",
    "group.consumer.assignment.interval.ms": "int",
    "group.coordinator.cached.buffer.max.bytes": "int",
    "group.share.assignment.interval.ms": "int",
    "group.streams.assignment.interval.ms": "int",
    "log.cleaner.dedupe.buffer.size": "long",
    "log.cleaner.io.buffer.load.factor": "double",
    "log.cleaner.io.buffer.size": "int",
    "log.cleaner.io.max.bytes.per.second": "double",
    "log.cleaner.threads": "int",
    "log.local.retention.bytes": "long",
    "log.local.retention.ms": "long",
    "max.connections.per.ip.overrides": "string",
    "metric.reporters": "list",
    "num.io.threads": "int",
    "num.network.threads": "int",
    "num.recovery.threads.per.data.dir": "int",
    "num.replica.fetchers": "int",
    "remote.fetch.max.wait.ms": "int",
    "remote.list.offsets.request.timeout.ms": "long",
    "remote.log.index.file.cache.total.size.bytes": "long",
    "remote.log.manager.copier.thread.pool.size": "int",
    "remote.log.manager.copy.max.bytes.per.second": "long",
    "remote.log.manager.expiration.thread.pool.size": "int",
    "remote.log.manager.fetch.max.bytes.per.second": "long",
    "remote.log.manager.follower.thread.pool.size": "int",
    "remote.log.reader.threads": "int",
    "replica.alter.log.dirs.io.max.bytes.per.second": "long",
    "share.coordinator.cached.buffer.max.bytes": "int",
}
"""Those that Apache Kafka can change at run time, with their types. Secrets and other security settings are left out:
they would be stored without protecting anything."""

_DEFAULTS = {"log.local.retention.bytes": -2, "log.local.retention.ms": -2}


def is_unused(name: str) -> bool:
    return name in UNUSED or name.startswith(UNUSED_PREFIXES)


def unused_setting(name: str) -> Setting:
    kind = UNUSED_AT_RUN_TIME.get(name)
    if kind is None:
        # We do not know what these hold: a name that looks like a secret is treated as one.
        kind = "password" if looks_secret(name) else "string"
    return Setting(name, _DEFAULTS.get(name), "Accepted but has no effect.", kind, "")


UNUSED_TOPIC_SETTINGS = {
    setting.name: setting
    for setting in (
        *(
            Setting(
                f"local.retention.{unit}",
                -2,
                "Accepted but has no effect: it limits local segments of topics in tiered storage.",
                "long",
                "",
                at_least=-2,
                server_name=f"log.local.retention.{unit}",
            )
            for unit in ("bytes", "ms")
        ),
        Setting("remote.log.copy.disable", False, "Accepted but has no effect: no topic is tiered.", "boolean", ""),
        Setting(
            "remote.log.delete.on.disable", False, "Accepted but has no effect: no topic is tiered.", "boolean", ""
        ),
        Setting(
            "remote.storage.enable",
            False,
            "Tiered storage is not supported: only false is accepted.",
            "boolean",
            "",
            check=lambda enabled: not enabled,
            rule="tiered storage is not supported, all segments stay on the broker's disk",
        ),
    )
}
"""Topic settings that are stored and described as in Kafka, but have no effect."""
