"""Settings of other Kafka clients: other names for settings that we have, and settings without effect here. Pure.

With these, the configuration of a Java, librdkafka, kafka-python or aiokafka program can be used unchanged. A misspelt
name is still an error: only names that one of these clients has are accepted.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ottla.client.core.security_settings import SECURITY
from ottla.config import HIDDEN, looks_secret
from ottla.errors import ConfigError

log = logging.getLogger("ottla.client")


def _kibibytes(value: Any) -> Any:
    """The only conversion that can fail: with ValueError or TypeError, if the value is not a whole number."""
    return int(value) * 1024


def _reset(value: Any) -> Any:
    words = {"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest", "error": "none"}
    return words.get(str(value).strip().lower(), value)


def _identification(value: Any) -> Any:
    return "https" if str(value).strip().lower() == "true" else ""


ALIASES: dict[str, tuple[str, Callable[[Any], Any] | None]] = {
    # librdkafka
    "metadata.broker.list": ("bootstrap.servers", None),
    "max.in.flight": ("max.in.flight.requests.per.connection", None),
    "queue.buffering.max.ms": ("linger.ms", None),
    "queue.buffering.max.kbytes": ("buffer.memory", _kibibytes),
    "message.max.bytes": ("max.request.size", None),
    "message.send.max.retries": ("retries", None),
    "message.timeout.ms": ("delivery.timeout.ms", None),
    "request.required.acks": ("acks", None),
    "compression.codec": ("compression.type", None),
    "fetch.wait.max.ms": ("fetch.max.wait.ms", None),
    "fetch.message.max.bytes": ("max.partition.fetch.bytes", None),
    "sasl.mechanisms": ("sasl.mechanism", None),
    "ssl.ca.location": ("ssl.truststore.location", None),
    "ssl.ca.pem": ("ssl.truststore.certificates", None),
    "ssl.certificate.pem": ("ssl.keystore.certificate.chain", None),
    "ssl.key.pem": ("ssl.keystore.key", None),
    "sasl.oauthbearer.client.id": ("sasl.oauthbearer.client.credentials.client.id", None),
    "sasl.oauthbearer.client.secret": ("sasl.oauthbearer.client.credentials.client.secret", None),
    "oauth.cb": ("sasl.oauth.token.provider", None),
    # aiokafka and kafka-python
    "max.batch.size": ("batch.size", None),
    "ssl.cafile": ("ssl.truststore.location", None),
    "ssl.cadata": ("ssl.truststore.certificates", None),
    "ssl.certfile": ("ssl.certificate.location", None),
    "ssl.keyfile": ("ssl.key.location", None),
    "ssl.password": ("ssl.key.password", None),
    "ssl.ciphers": ("ssl.cipher.suites", None),
    "ssl.check.hostname": ("ssl.endpoint.identification.algorithm", _identification),
    "sasl.plain.username": ("sasl.username", None),
    "sasl.plain.password": ("sasl.password", None),
}
"""Another client's name -> our name, and how to convert the value."""

CONVERSIONS = {"auto.offset.reset": _reset}
"""Other words for the values of settings with Kafka's own name."""

IGNORED = frozenset(
    """
    api.version api.version.auto.timeout.ms api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.include.jmx.reporter background.event.cb batch.num.messages broker.address.family broker.address.ttl
    broker.version.fallback builtin.features client.dns.lookup closesocket.cb config.providers connect.cb
    connections.max.idle.ms consume.callback.max.messages consumer.timeout.ms coordinator.query.interval.ms debug
    default.topic.config dr.cb dr.msg.cb enable.auto.offset.store enable.gapless.guarantee enable.metrics.push
    enable.partition.eof enable.random.seed enabled.events error.cb fetch.error.backoff.ms fetch.queue.backoff.ms
    group.protocol.type group.remote.assignor interceptor.classes internal.leave.group.on.close
    internal.termination.signal key.deserializer key.serializer log.cb log.connection.close log.level log.queue
    log.thread.name logger loop message.copy.max.bytes metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy metric.reporters metrics.enabled metrics.num.samples metrics.recording.level
    metrics.sample.window.ms msg.order.cmp offset.commit.cb offset.store.method on.commit on.delivery opaque
    open.cb partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.ignore.keys
    plugin.library.paths produce.offset.report queue.buffering.backpressure.threshold queue.buffering.max.messages
    queued.max.messages.kbytes queued.min.messages queuing.strategy rebalance.cb sasl.client.callback.handler.class
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class
    sasl.login.class sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    sasl.oauthbearer.config sasl.oauthbearer.method security.providers ssl.curves.list ssl.engine.factory.class
    ssl.keymanager.algorithm ssl.provider ssl.secure.random.implementation ssl.sigalgs.list
    ssl.trustmanager.algorithm rebalance.timeout.ms
    receive.buffer.bytes receive.message.max.bytes reconnect.backoff.jitter.ms resolve.cb retries.backoff.ms selector
    send.backoff.ms send.buffer.bytes share.acknowledgement.mode sock.chunk.bytes socket.blocking.max.ms socket.cb
    socket.connection.setup.timeout.max.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
    socket.options socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
    sticky.partitioning.linger.ms throttle.cb
    topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    value.deserializer value.serializer
    """.split()  # noqa: SIM905
)
"""Accepted, with one warning per client."""

PARTITIONERS = {"partitioner": ("murmur2", "murmur2_random")}
"""librdkafka's partitioners that pick the same partitions as ours."""

_OBJECTS = {
    "deserializer": "DeserializingConsumer takes {0}_deserializer=.",
    "serializer": "SerializingProducer takes {0}_serializer=.",
}
FUNCTIONS = {"stats.cb": "on_statistics"}
"""Functions in librdkafka's settings that are arguments here. They are called with a dict, not with JSON."""
SERIALIZERS = {f"{part}.{what}": hint.format(part) for part in ("key", "value") for what, hint in _OBJECTS.items()}
"""A class name, as in Java, is ignored. A function, as in kafka-python, would have to be called."""

PLAINTEXT = "plaintext"


def security_name(name: str) -> str:
    """Our name for a setting of TLS or SASL that librdkafka names differently; any other name unchanged.

    >>> security_name("ssl.ca.location"), security_name("linger.ms")
    ('ssl.truststore.location', 'linger.ms')
    """
    our_name, convert = ALIASES.get(name, (name, None))
    return our_name if name.startswith(SECURITY) and convert is None else name


def translate(settings: Mapping[str, Any], known: Iterable[str], of_other_clients: Iterable[str]) -> dict[str, Any]:
    """The settings under our names, without those that have no effect here. Unknown names stay, to be rejected.

    `of_other_clients` are the settings of our other kinds of clients: they stay too.

    >>> translate({"queue.buffering.max.ms": 20, "client.dns.lookup": "use_all_dns_ips"}, ["linger.ms"], [])
    {'linger.ms': 20}
    """
    ours, others = set(known), set(of_other_clients)
    chosen: dict[str, Any] = {}
    unused: list[str] = []
    is_plaintext = _is_plaintext(settings)
    for written, value in settings.items():
        name = str(written).replace("_", ".") if written not in ours else written
        if written in ours or written in others:
            chosen[written] = CONVERSIONS[written](value) if written in CONVERSIONS else value
        elif name in ALIASES and ALIASES[name][0] in ours:
            our_name, convert = ALIASES[name]
            if our_name in settings or our_name in chosen:
                raise ConfigError(f"{our_name} is set twice: {name} is another name for it", f"Omit {name}.")
            chosen[our_name] = value if convert is None else _converted(name, value, convert)
        elif _has_no_effect(name, value, is_plaintext):
            unused.append(str(written))
        else:
            chosen[written] = value
    if unused:
        log.warning("settings without effect in this client: %s", ", ".join(sorted(unused)))
    return chosen


def _has_no_effect(name: str, value: Any, is_plaintext: bool) -> bool:
    if name in PARTITIONERS:
        if str(value) in PARTITIONERS[name]:
            return True
        raise ConfigError(
            f"{name}={value} is not supported: keys would go to other partitions than with that client",
            "Pass partitioner= with a function that does the same, or omit it for the rules of the Java client.",
        )
    if name in FUNCTIONS:
        raise ConfigError(f"{name} is not a setting", f"Pass {FUNCTIONS[name]}= to the client.")
    if name in SERIALIZERS and callable(value):
        raise ConfigError(f"{name} is not a setting of this class", SERIALIZERS[name])
    return name in IGNORED or name in ALIASES or (is_plaintext and name.startswith(SECURITY))


def _is_plaintext(settings: Mapping[str, Any]) -> bool:
    """Whether the configuration explicitly disables security. Otherwise an unknown setting of TLS or SASL must not be
    ignored: the program would connect without the protection that it configures."""
    protocol = settings.get("security.protocol", settings.get("security_protocol"))
    return str(protocol).strip().lower() == PLAINTEXT


def _converted(name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    try:
        return convert(value)
    except (TypeError, ValueError):
        shown = HIDDEN if looks_secret(name) else value
        raise ConfigError(f"Invalid value {shown} for configuration {name}", "Use a whole number.") from None
