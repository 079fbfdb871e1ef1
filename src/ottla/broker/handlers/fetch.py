"""Fetch v4-18: reads stored batches, for consumers and followers; waits for them up to max_wait_ms.

v4   isolation level and aborted transactions (KIP-98)
v5   log start offset
v6   KAFKA_STORAGE_ERROR (KIP-112)
v7   fetch sessions (KIP-227)
v9   current leader epoch (KIP-320)
v10  zstd (KIP-110); earlier versions get UNSUPPORTED_COMPRESSION_TYPE
v11  rack and preferred read replica (KIP-392); consumers may read from followers, up to their high watermark
v12  flexible (KIP-482); last fetched and diverging epoch (KIP-595)
v13  topic ids (KIP-516)
v15  replica id in a tagged field, with a replica epoch (KIP-903)
v16  current leader and node endpoints (KIP-951)
v17  directory id (KIP-853); ignored
v18  high watermark of the follower (KIP-1166); ignored

If there is enough data the response is sent at once. Otherwise the fetch registers with each of its partitions for
the bytes it lacks; appends count them, and the data is read once, when the response is due.
"""

import asyncio
import weakref
from collections.abc import Generator
from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.fetching.follower_reading import FollowerReading, check_follower
from ottla.broker.handler_support.fetching.reading import TOPIC_IDS_SINCE, Reading
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch_session_epochs import INITIAL_EPOCH, NO_SESSION
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.replication.waiting import FetchWait
from ottla.security.resources import CLUSTER, Operation


@handles(ApiKey.FETCH)
def fetch(request: FetchRequest, context: Context) -> "FetchResponse | WaitingFetch":
    session = None
    follower_id = request.replica_state.replica_id if context.api_version >= 15 else request.replica_id
    try:
        if follower_id >= 0:
            if not context.allows(Operation.CLUSTER_ACTION, CLUSTER):
                return _refuse(request, context)
            check_follower(follower_id, request.replica_state.replica_epoch, context.services.image)
        if request.session_id != NO_SESSION or request.session_epoch > INITIAL_EPOCH:
            services = context.services
            session = services.sessions.resume(
                request,
                uses_topic_ids=context.api_version >= TOPIC_IDS_SINCE,
                is_follower=follower_id >= 0,
                monotonic_ms=services.monotonic(),
            )
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    reading: Reading
    if follower_id >= 0:
        reading = FollowerReading(request, context, session)
    elif context.services.quotas is None:
        reading = Reading(request, context, session)
    else:
        from ottla.broker.handler_support.fetching.limited_reading import LimitedReading

        reading = LimitedReading(request, context, session, context.services.quotas)
    if request.max_wait_ms > 0 and not reading.is_ready():
        return WaitingFetch(reading)
    return reading.respond()


def _refuse(request: FetchRequest, context: Context) -> FetchResponse:
    """For a client that pretends to be a follower, or a broker whose principal is not in super.users."""
    if not request.topics:
        # An empty answer would be followed by the next request at once.
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    by_id = context.api_version >= TOPIC_IDS_SINCE
    return FetchResponse(
        responses=[
            FetchResponse.FetchableTopicResponse(
                **({"topic_id": topic.topic_id} if by_id else {"topic": topic.topic}),
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=asked.partition,
                        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                        high_watermark=-1,
                        records=b"",
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


class WaitingFetch:
    """A fetch whose answer waits for bytes. Its data is read only when it is its turn to be answered.

    If it is dropped before it is awaited, it leaves its partitions: a lost connection leaves nothing behind.
    """

    __slots__ = ("__weakref__", "_enough", "_reading", "_response", "_wait")

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._response: FetchResponse | None = None
        self._enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wait = FetchWait(reading.min_bytes - reading.available_bytes, self._enough)
        reading.wait(self._wait)
        if reading.session is not None and reading.session.is_follower:
            reading.session.waiting = weakref.ref(self)

    def answer_now(self) -> None:
        """The session's next request has arrived. Its changes must not affect this answer."""
        if self._response is None:
            self._reading.end_wait(self._wait)
            self._response = self._reading.respond()
            if not self._enough.done():
                self._enough.set_result(None)

    def __await__(self) -> Generator[Any, None, FetchResponse]:
        try:
            yield from self._enough
        finally:
            self._reading.end_wait(self._wait)
        if self._response is None:
            self._response = self._reading.respond()
        return self._response

    def __del__(self) -> None:
        self._reading.end_wait(self._wait)
