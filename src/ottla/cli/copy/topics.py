"""Chooses the topics to copy, and creates what the target lacks: topics, partitions, settings."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.cli.copy.ledger import LEDGER_TOPIC
from ottla.cli.output import CommandError
from ottla.client.admin.admin import AsyncAdmin
from ottla.client.core.model import NewTopic, TopicDescription
from ottla.errors import ErrorCode, KafkaError, OttlaError

LEDGER_CONFIGS = {"cleanup.policy": "compact"}
TIMESTAMPS = "message.timestamp.type"


class Wanted(NamedTuple):
    """What the target lacks."""

    create: list[NewTopic]
    grow: dict[str, int]
    """New numbers of partitions."""
    notices: list[str]


def choose(topics: Iterable[TopicDescription], pattern: str) -> list[TopicDescription]:
    """The topics whose whole name matches. Internal ones belong to their cluster and are never copied."""
    try:
        matches = re.compile(pattern).fullmatch
    except re.error as error:
        raise OttlaError(
            f"--topics {pattern} is not a regular expression: {error}", "for all topics: --topics '.*'"
        ) from None
    return [
        topic
        for topic in topics
        if matches(topic.name)
        and not topic.is_internal
        and not topic.name.startswith("__")
        and topic.name != LEDGER_TOPIC
    ]


def plan(
    source: Iterable[TopicDescription],
    target: Mapping[str, TopicDescription],
    configs: Mapping[str, Mapping[str, str]],
    broker_count: int,
) -> Wanted:
    """Compares both sides. Raises CommandError if keys would be written to other partitions than before."""
    wanted = Wanted([], {}, [])
    for topic in source:
        count, existing = len(topic.partitions), target.get(topic.name)
        if existing is None:
            wanted.create.append(_new_topic(topic, dict(configs.get(topic.name, {})), broker_count, wanted.notices))
        elif len(existing.partitions) > count:
            raise CommandError(
                f"topic {topic.name} has {count} partitions in the source and {len(existing.partitions)} in the target",
                "keys would move to other partitions; add partitions to the source, or exclude the topic",
            )
        elif len(existing.partitions) < count:
            wanted.grow[topic.name] = count
    return wanted


def _new_topic(topic: TopicDescription, configs: dict[str, str], broker_count: int, notices: list[str]) -> NewTopic:
    replicas = min(topic.replication_factor, broker_count)
    if replicas < topic.replication_factor:
        notices.append(f"{topic.name}: {replicas} replicas instead of {topic.replication_factor}, one on each broker")
        if int(configs.get("min.insync.replicas", "1")) > replicas:
            configs["min.insync.replicas"] = str(replicas)
    if configs.get(TIMESTAMPS) == "LogAppendTime":
        # The target would replace the timestamps by the time of the copy.
        del configs[TIMESTAMPS]
        notices.append(f"{topic.name}: set {TIMESTAMPS}=LogAppendTime in the target once producers have moved")
    return NewTopic(topic.name, len(topic.partitions), replicas, configs)


async def prepare(source: AsyncAdmin, target: AsyncAdmin, pattern: str) -> tuple[list[TopicDescription], list[str]]:
    """Creates what the target lacks. Returns the topics to copy, and notices for the user."""
    chosen = choose(await source.list_topics(), pattern)
    existing = {topic.name: topic for topic in await target.list_topics(include_internal=True)}
    brokers = len((await target.describe_cluster()).brokers)
    configs = {topic.name: await own_configs(source, topic.name) for topic in chosen if topic.name not in existing}
    wanted = plan(chosen, existing, configs, brokers)
    if LEDGER_TOPIC not in existing:
        await _create(target, NewTopic(LEDGER_TOPIC, 1, min(3, brokers), LEDGER_CONFIGS), wanted.notices)
    for topic in wanted.create:
        await _create(target, topic, wanted.notices)
    if wanted.grow:
        await target.create_partitions(wanted.grow)
    return chosen, wanted.notices


async def own_configs(admin: AsyncAdmin, topic: str) -> dict[str, str]:
    """The settings that were set for this topic."""
    entries = await admin.describe_configs("topic", topic)
    return {entry.name: entry.value for entry in entries if entry.source == "topic" and entry.value is not None}


async def is_compacted(admin: AsyncAdmin, topic: str) -> bool:
    """Whether records may disappear from the middle of the topic."""
    entries = await admin.describe_configs("topic", topic, names=["cleanup.policy"])
    return any("compact" in (entry.value or "") for entry in entries if entry.name == "cleanup.policy")


async def _create(admin: AsyncAdmin, topic: NewTopic, notices: list[str]) -> None:
    try:
        await admin.create_topics([topic])
        return
    except KafkaError as error:
        if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        if error.code != ErrorCode.INVALID_CONFIG or not topic.configs:
            raise
    # The target rejects one of the settings: find it, and omit it.
    accepted = {}
    for name, value in topic.configs.items():
        alone = NewTopic(topic.name, topic.partitions, topic.replication_factor, {name: value})
        try:
            await admin.create_topics([alone], validate_only=True)
            accepted[name] = value
        except KafkaError as error:
            if error.code != ErrorCode.INVALID_CONFIG:
                raise
            notices.append(f"{topic.name}: the target does not accept {name}={value}")
    await admin.create_topics([NewTopic(topic.name, topic.partitions, topic.replication_factor, accepted)])
