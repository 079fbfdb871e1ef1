"""OffsetFetch v1-10: reads committed offsets of groups.

v2   null asks for all topics; an error code for the whole response
v5   leader epoch (KIP-320)
v6   flexible (KIP-482)
v7   can require stable offsets: UNSTABLE_OFFSET_COMMIT while a transaction is pending (KIP-447)
v8   several groups (KIP-709)
v9   member id and epoch (KIP-848); ignored for classic groups
v10  topic ids (KIP-848)
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.coordinator.group.offset_requests import FetchedPartition, FetchedTopic
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from ottla.types import ZERO_UUID

Topics = list[tuple[str, bytes, list[int]]]
Asked = tuple[str, Topics | None]
"""A group and what is asked of it."""
Found = list[FetchedTopic] | KafkaError

TOP_LEVEL_ERROR_SINCE = 2
MANY_GROUPS_SINCE = 8
BY_ID_SINCE = 10


@handles(ApiKey.OFFSET_FETCH)
def offset_fetch(request: OffsetFetchRequest, context: Context) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    if context.api_version < MANY_GROUPS_SINCE:
        asked = [(request.group_id, _topics(request.topics, context))]
    else:
        asked = [(group.group_id, _topics(group.topics, context)) for group in request.groups]
    answers = [_fetch(group_id, topics, request.require_stable, context) for group_id, topics in asked]
    ready = [answer for answer in answers if not isinstance(answer, asyncio.Future)]
    if len(ready) < len(answers):
        return _later(asked, answers, context)
    return _response(asked, ready, context)


async def _later(
    asked: list[Asked], answers: "list[Found | asyncio.Future[list[FetchedTopic]]]", context: Context
) -> OffsetFetchResponse:
    """Some of it has to be committed first."""
    ready: list[Found] = []
    for answer in answers:
        try:
            ready.append(await answer if isinstance(answer, asyncio.Future) else answer)
        except KafkaError as error:
            ready.append(error)
    return _response(asked, ready, context)


def _response(asked: list[Asked], answers: list[Found], context: Context) -> OffsetFetchResponse:
    version = context.api_version
    found_by_group = [_unpack(topics, answer, version) for (_, topics), answer in zip(asked, answers, strict=True)]
    if version < MANY_GROUPS_SINCE:
        ((code, found),) = found_by_group
        return OffsetFetchResponse(error_code=code, topics=_pack(found, version))
    return OffsetFetchResponse(
        groups=[
            OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=group_id, topics=_pack(found, version), error_code=code
            )
            for (group_id, _), (code, found) in zip(asked, found_by_group, strict=True)
        ]
    )


def _topics(topics: Any, context: Context) -> Topics | None:
    """What is asked for as (name, id, partitions); None for everything there is."""
    if topics is None:
        return None
    if context.api_version < BY_ID_SINCE:
        return [(topic.name, ZERO_UUID, topic.partition_indexes) for topic in topics]
    names = context.services.image.topic_names
    return [(names.get(topic.topic_id, ""), topic.topic_id, topic.partition_indexes) for topic in topics]


def _fetch(
    group_id: str, topics: Topics | None, require_stable: bool, context: Context
) -> "Found | asyncio.Future[list[FetchedTopic]]":
    """What was found, a future of it, or the error."""
    by_id = context.api_version >= BY_ID_SINCE

    try:
        return context.services.groups.read(
            group_id, lambda shard: shard.fetch_offsets(group_id, topics, require_stable, by_id)
        )
    except KafkaError as error:
        return error


def _unpack(topics: Topics | None, answer: Found, version: int) -> tuple[ErrorCode, list[FetchedTopic]]:
    """The error code of the group, and what was found. Before v2 only partitions have an error code."""
    if not isinstance(answer, KafkaError):
        return ErrorCode.NONE, answer
    code = answer.code
    if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        # Consumers before 3.9 do not expect it here; this makes them look for the coordinator, and try again.
        code = ErrorCode.NOT_COORDINATOR
    if version >= TOP_LEVEL_ERROR_SINCE:
        return code, []
    return code, [
        FetchedTopic(name, topic_id, [FetchedPartition(partition, None, code) for partition in partitions])
        for name, topic_id, partitions in topics or []
    ]


def _pack(found: list[FetchedTopic], version: int) -> list[Any]:
    if version >= MANY_GROUPS_SINCE:
        make_topic: Any = OffsetFetchResponse.OffsetFetchResponseTopics
        make_partition: Any = OffsetFetchResponse.OffsetFetchResponsePartitions
    else:
        make_topic = OffsetFetchResponse.OffsetFetchResponseTopic
        make_partition = OffsetFetchResponse.OffsetFetchResponsePartition
    packed = []
    for name, topic_id, partitions in found:
        is_unknown = version >= BY_ID_SINCE and not name
        parts = [
            make_partition(
                partition_index=partition,
                committed_offset=-1 if committed is None else committed.offset,
                committed_leader_epoch=-1 if committed is None else committed.leader_epoch,
                metadata="" if committed is None else committed.metadata,
                error_code=ErrorCode.UNKNOWN_TOPIC_ID if is_unknown else code,
            )
            for partition, committed, code in partitions
        ]
        topic = make_topic(name=name, partitions=parts)
        if version >= BY_ID_SINCE:
            topic.topic_id = topic_id
        packed.append(topic)
    return packed
