"""OffsetFetch v1-10: reads committed offsets of groups.

v2   null requests all topics; an error code for the whole response
v5   leader epoch (KIP-320)
v6   flexible (KIP-482)
v7   can require stable offsets: UNSTABLE_OFFSET_COMMIT while a transaction is pending (KIP-447)
v8   several groups (KIP-709)
v9   member id and epoch (KIP-848); ignored for classic groups
v10  topic ids (KIP-848)
"""

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any, TypeVar

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import require_group
from ottla.broker.handler_support.later import Later
from ottla.broker.handler_support.sliced_response import SlicedResponse, answer_each
from ottla.broker.services import Context
from ottla.coordinator.group.offset_requests import FetchedPartition, FetchedTopic
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.runtime import settled
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from ottla.security.resources import Operation, ResourceType
from ottla.types import ZERO_UUID

T = TypeVar("T", bound=tuple[Any, Any, list[Any]])

Topics = list[tuple[str, bytes, list[int]]]
Asked = tuple[str, Topics | None]
"""A group and the requested topics."""
Found = list[FetchedTopic] | KafkaError

TOP_LEVEL_ERROR_SINCE = 2
MANY_GROUPS_SINCE = 8
BY_ID_SINCE = 10
GROUPS_PER_SLICE = 50
PARTITIONS_PER_SLICE = 500
"""A group may have committed offsets of a hundred thousand partitions."""


@handles(ApiKey.OFFSET_FETCH)
def offset_fetch(
    request: OffsetFetchRequest, context: Context
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse | SlicedResponse]:
    if context.api_version < MANY_GROUPS_SINCE:
        asked = [(request.group_id, _topics(request.topics, context))]
    else:
        asked = [(group.group_id, _topics(group.topics, context)) for group in request.groups]
    if len(asked) > GROUPS_PER_SLICE or any(_is_long(group_id, topics, context) for group_id, topics in asked):
        return Later(lambda: _in_slices(asked, request.require_stable, context))
    answers = [_fetch(group_id, topics, request.require_stable, context) for group_id, topics in asked]
    ready = [answer for answer in answers if not isinstance(answer, asyncio.Future)]
    if len(ready) < len(answers):
        return _later(asked, answers, context)
    return _response(asked, ready, context)


def _is_long(group_id: str, topics: Topics | None, context: Context) -> bool:
    if topics is not None:
        return sum(len(partitions) for _, _, partitions in topics) > PARTITIONS_PER_SLICE
    try:
        committed = context.services.groups.shard(group_id).offsets.of(group_id)
    except KafkaError:
        return False
    return sum(map(len, committed.values())) > PARTITIONS_PER_SLICE


async def _in_slices(
    asked: list[Asked], require_stable: bool, context: Context
) -> OffsetFetchResponse | SlicedResponse:
    """The same with pauses. An offset that is committed meanwhile is returned with its old or its new value."""
    version = context.api_version

    async def fetch_group(each: Asked) -> OffsetFetchResponse.OffsetFetchResponseGroup:
        return _response([each], [await _fetch_long(each, require_stable, context)], context).groups[0]

    if len(asked) > 1:
        return await answer_each(OffsetFetchResponse(), "groups", version, asked, fetch_group, GROUPS_PER_SLICE)
    found = await _fetch_long(asked[0], require_stable, context)
    if isinstance(found, KafkaError):
        return _response(asked, [found], context)
    found = _shown(asked[0][1], found, context)
    assert not isinstance(found, KafkaError)
    message = _response(asked, [[]], context)
    response = SlicedResponse(message, "topics", version, message.groups[0] if version >= MANY_GROUPS_SINCE else None)
    for topics in _by_size(found):
        await response.add(_pack(topics, version))
    return response


async def _fetch_long(asked: Asked, require_stable: bool, context: Context) -> Found:
    """What one group has committed, read a few hundred partitions at a time."""
    (group_id, topics), by_id = asked, context.api_version >= BY_ID_SINCE
    groups = context.services.groups
    found: list[FetchedTopic] = []
    try:
        require_group(context, Operation.DESCRIBE, group_id)
        if topics is None:
            topics = await settled(groups.read(group_id, lambda shard: shard.committed_topics(group_id, by_id)))
        for some in _by_size(topics):

            def look(shard: GroupShard, some: Topics = some) -> list[FetchedTopic]:
                return shard.fetch_offsets(group_id, some, require_stable, by_id)

            answer = await settled(groups.read(group_id, look))
            found += answer
            if len(topics) > 1:
                await asyncio.sleep(0)
    except KafkaError as error:
        return error
    return found


def _by_size(topics: list[T]) -> Iterator[list[T]]:
    """Slices of whole topics, with a few hundred partitions each."""
    some: list[T] = []
    size = 0
    for topic in topics:
        some.append(topic)
        size += len(topic[2])
        if size >= PARTITIONS_PER_SLICE:
            yield some
            some, size = [], 0
    if some:
        yield some


async def _later(
    asked: list[Asked], answers: "list[Found | asyncio.Future[list[FetchedTopic]]]", context: Context
) -> OffsetFetchResponse:
    """Waits for answers whose offsets are not replicated yet, then builds the response."""
    ready: list[Found] = []
    for answer in answers:
        try:
            ready.append(await answer if isinstance(answer, asyncio.Future) else answer)
        except KafkaError as error:
            ready.append(error)
    return _response(asked, ready, context)


def _response(asked: list[Asked], answers: list[Found], context: Context) -> OffsetFetchResponse:
    version = context.api_version
    found_by_group = [
        _unpack(topics, _shown(topics, answer, context), version)
        for (_, topics), answer in zip(asked, answers, strict=True)
    ]
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
    """The requested topics as (name, id, partitions); None for all."""
    if topics is None:
        return None
    if context.api_version < BY_ID_SINCE:
        return [(topic.name, ZERO_UUID, topic.partition_indexes) for topic in topics]
    names = context.services.image.topic_names
    return [(names.get(topic.topic_id, ""), topic.topic_id, topic.partition_indexes) for topic in topics]


def _fetch(
    group_id: str, topics: Topics | None, require_stable: bool, context: Context
) -> "Found | asyncio.Future[list[FetchedTopic]]":
    """The result, a future for it, or the error."""
    by_id = context.api_version >= BY_ID_SINCE
    try:
        require_group(context, Operation.DESCRIBE, group_id)
        return context.services.groups.read(
            group_id, lambda shard: shard.fetch_offsets(group_id, topics, require_stable, by_id)
        )
    except KafkaError as error:
        return error


def _shown(topics: Topics | None, answer: Found, context: Context) -> Found:
    """What the client may see of an answer: topics that it may not describe are left out or, if named, refused."""
    describable = context.allowed(Operation.DESCRIBE, ResourceType.TOPIC, quietly=topics is None)
    if describable is None or isinstance(answer, KafkaError):
        return answer
    shown = []
    for fetched in answer:
        # The topic of an unknown id has no name.
        if not fetched.name or describable[fetched.name]:
            shown.append(fetched)
        elif topics is not None:
            refused = [
                FetchedPartition(partition.partition, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                for partition in fetched.partitions
            ]
            shown.append(fetched._replace(partitions=refused))
    return shown


def _unpack(topics: Topics | None, answer: Found, version: int) -> tuple[ErrorCode, list[FetchedTopic]]:
    """The error code of the group, and what was found. Before v2 only partitions have an error code."""
    if not isinstance(answer, KafkaError):
        return ErrorCode.NONE, answer
    code = answer.code
    if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        # Consumers before 3.9 do not expect it here; this makes them look up the coordinator and retry.
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
