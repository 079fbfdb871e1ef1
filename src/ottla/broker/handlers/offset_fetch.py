"""OffsetFetch v1-10: reads committed positions. v2 null means all topics, v7 can insist on stable offsets, v8 asks for
many groups at once, v10 names topics by id."""

import asyncio
from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.coordinator.effects import Effects
from ottla.coordinator.group.shard import GroupShard
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from ottla.types import ZERO_UUID


@handles(ApiKey.OFFSET_FETCH, versions=range(1, 11))
async def offset_fetch(request: OffsetFetchRequest, context: Context) -> OffsetFetchResponse:
    version = context.api_version
    if version >= 8:
        asked = [
            (group.group_id, None if group.topics is None else _topics(group.topics, context))
            for group in request.groups
        ]
    else:
        asked = [(request.group_id, None if request.topics is None else _topics(request.topics, context))]
    answers = await asyncio.gather(
        *(_fetch(group_id, topics, request.require_stable, context) for group_id, topics in asked)
    )
    if version >= 8:
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group_id, topics=topics, error_code=code)
                for (group_id, _), (code, topics) in zip(asked, answers, strict=True)
            ]
        )
    ((code, found),) = answers
    return OffsetFetchResponse(error_code=code, topics=found)


def _topics(topics: Any, context: Context) -> list[tuple[str, bytes, list[int]]]:
    names = context.services.image.topic_names
    return [
        (names.get(topic.topic_id, ""), topic.topic_id, topic.partition_indexes)
        if context.api_version >= 10
        else (topic.name, ZERO_UUID, topic.partition_indexes)
        for topic in topics
    ]


async def _fetch(
    group_id: str, topics: list[tuple[str, bytes, list[int]]] | None, require_stable: bool, context: Context
) -> tuple[ErrorCode, list[Any]]:
    by_id = context.api_version >= 10

    def look(shard: GroupShard, request_id: int, now: int) -> Effects:
        effects = Effects()
        effects.reply(request_id, shard.fetch_offsets(group_id, topics, require_stable, by_id))
        return effects

    try:
        found = context.services.groups.submit(group_id, look)
        if isinstance(found, asyncio.Future):
            found = await found
    except KafkaError as error:
        # A group whose coordinator has no topic yet has committed nothing; clients retry the rest.
        nothing = [(name, topic_id, [(p, None, error.code) for p in parts]) for name, topic_id, parts in topics or []]
        return error.code, _pack(nothing, context.api_version)
    return ErrorCode.NONE, _pack(found, context.api_version)


def _pack(found: list[Any], version: int) -> list[Any]:
    if version >= 8:
        make_topic: Any = OffsetFetchResponse.OffsetFetchResponseTopics
        make_partition: Any = OffsetFetchResponse.OffsetFetchResponsePartitions
    else:
        make_topic = OffsetFetchResponse.OffsetFetchResponseTopic
        make_partition = OffsetFetchResponse.OffsetFetchResponsePartition
    packed = []
    for name, topic_id, partitions in found:
        unknown_id = version >= 10 and not name
        parts = [
            make_partition(
                partition_index=partition,
                committed_offset=-1 if committed is None else committed.offset,
                committed_leader_epoch=-1 if committed is None else committed.leader_epoch,
                metadata="" if committed is None else committed.metadata,
                error_code=ErrorCode.UNKNOWN_TOPIC_ID if unknown_id else code,
            )
            for partition, committed, code in partitions
        ]
        topic = make_topic(name=name, partitions=parts)
        if version >= 10:
            topic.topic_id = topic_id
        packed.append(topic)
    return packed
