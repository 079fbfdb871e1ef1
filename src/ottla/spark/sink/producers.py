"""OWNER of the sink's producers in a Python worker: opened for a transactional id, kept for the next task.

Spark reuses workers, so connections are kept between tasks. A forked worker starts with none.
"""

import os

from ottla.client.blocking import Producer
from ottla.errors import ErrorCode, KafkaError
from ottla.spark.sink.clients import BROKER_TIMEOUT_MS, Clients, clients, run
from ottla.spark.sink.errors import SinkError
from ottla.spark.sink.options import SinkOptions
from ottla.spark.workers import SettingsKey, settings_key

NO_TWO_PHASE = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION)
"""The errors of brokers with two-phase commit (KIP-939) turned off, and without it."""

_without_two_phase: set[str] = set()
"""Brokers that rejected two-phase commit: a worker tries each only once."""
_spare: dict[SettingsKey, Producer] = {}
"""Transactional producers that left their transaction prepared. The next task reuses one under its own id."""
_plain: dict[SettingsKey, Producer] = {}
"""Producers without transactions, kept from batch to batch."""


def _after_fork() -> None:
    _without_two_phase.clear()
    _spare.clear()
    _plain.clear()


os.register_at_fork(after_in_child=_after_fork)


def open_producer(options: SinkOptions, transactional_id: str) -> Producer:
    """A producer that owns its transactional id: older attempts are fenced, and their transactions aborted."""
    wanted = options.two_phase_commit
    if wanted == "required" or (wanted == "auto" and options.bootstrap not in _without_two_phase):
        try:
            return _initialised(options, transactional_id, two_phase=True)
        except KafkaError as error:
            if error.code not in NO_TWO_PHASE:
                raise explained(error, options) from error
            if wanted == "required":
                raise SinkError(
                    f"twoPhaseCommit is required, but the brokers do not allow it ({error})",
                    "Set transaction.two.phase.commit.enable=true on the brokers, or twoPhaseCommit=auto.",
                ) from None
            _without_two_phase.add(options.bootstrap)
    try:
        return _initialised(options, transactional_id, timeout_ms=options.timeout_ms)
    except KafkaError as error:
        if error.code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise explained(error, options) from error
    longest_ms = run(_longest_timeout(clients(options)))
    if options.has_timeout or longest_ms is None:
        raise SinkError(
            f"kafka.transaction.timeout.ms is {options.timeout_ms}; the brokers allow at most "
            f"{longest_ms if longest_ms is not None else 'transaction.max.timeout.ms'}",
            "Lower it, or raise transaction.max.timeout.ms on the brokers. It must be longer than the longest batch.",
        )
    try:
        return _initialised(options, transactional_id, timeout_ms=longest_ms)
    except KafkaError as error:
        raise explained(error, options) from error


def _initialised(
    options: SinkOptions, transactional_id: str, *, two_phase: bool = False, timeout_ms: int | None = None
) -> Producer:
    settings = _transactional(options, two_phase, timeout_ms)
    producer = _spare.pop(settings_key(settings), None)
    try:
        if producer is None:
            producer = Producer({**settings, "transactional.id": transactional_id})
        else:
            producer.continue_as(transactional_id)
        producer.init_transactions(timeout_ms=BROKER_TIMEOUT_MS)
    except BaseException:
        if producer is not None:
            producer.close(timeout_ms=0)
        raise
    return producer


def put_aside(producer: Producer, options: SinkOptions) -> None:
    """Keeps a producer that has left its transaction prepared."""
    config = producer.config
    settings = _transactional(options, config.transaction_two_phase_commit_enable, config.transaction_timeout_ms)
    key = settings_key(settings)
    before = _spare.pop(key, None)
    if before is not None:
        before.close()
    _spare[key] = producer


def _transactional(options: SinkOptions, two_phase: bool, timeout_ms: int | None) -> dict[str, str]:
    """The settings of a transactional producer, without its id: the key of `_spare`."""
    settings = options.producer_settings()
    if two_phase:
        settings["transaction.two.phase.commit.enable"] = "true"
    else:
        settings["transaction.timeout.ms"] = str(timeout_ms)
    return settings


def take_plain(options: SinkOptions) -> Producer:
    """A producer without transactions. Return it with `keep_plain`, unless it failed."""
    settings = options.producer_settings()
    return _plain.pop(settings_key(settings), None) or Producer(settings)


def keep_plain(producer: Producer, options: SinkOptions) -> None:
    _plain[settings_key(options.producer_settings())] = producer


async def _longest_timeout(owned: Clients) -> int | None:
    """The brokers' transaction.max.timeout.ms; None if they do not report it."""
    try:
        cluster = await owned.admin.describe_cluster()
        entries = await owned.admin.describe_configs(
            "broker", str(cluster.brokers[0].node_id), names=["transaction.max.timeout.ms"]
        )
        return int(entries[0].value or 0) or None
    except (KafkaError, IndexError, ValueError):
        return None


def explained(error: KafkaError, options: SinkOptions) -> Exception:
    """A broker's error with a hint for the user."""
    if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
        return SinkError(error.message, "Create the topic, or correct its name or the column `partition`.")
    if error.code == ErrorCode.MESSAGE_TOO_LARGE:
        return SinkError(
            error.message, "Raise kafka.max.request.size and the topic's max.message.bytes, or make rows smaller."
        )
    if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return SinkError(error.message, "Allow this user to write to the topic.")
    if error.code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION):
        return SinkError(error.message, f"Are the brokers at {options.bootstrap} running?")
    return error
