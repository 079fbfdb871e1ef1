"""Topic changes within the client's quota: every partition that is created or deleted takes a permit (KIP-599).

While the quota is exceeded, a request in a recent version is rejected, topic by topic, with THROTTLING_QUOTA_EXCEEDED.
Older clients do not know that error: their changes are made, and they are throttled afterwards. Topics that a metadata
request creates count too; above the quota they stay unknown, and the client is throttled.
"""

from collections.abc import Iterable, Sequence

from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.metadata.changes.topic_changes import MorePartitions, NewTopic, TopicReference, TopicResult
from ottla.types import ZERO_UUID

CREATE_TOPICS_STRICT_SINCE = 6
CREATE_PARTITIONS_STRICT_SINCE = 3
DELETE_TOPICS_STRICT_SINCE = 5
METADATA_STRICT_SINCE = 0
"""Clients retry topics that are still unknown, in every version."""

Results = tuple[list[TopicResult], int]
"""The result for each topic, and the throttle time in milliseconds."""


class MutationQuota:
    """The quota of one request."""

    def __init__(self, context: Context, strict_since: int) -> None:
        self._quotas = quotas = context.services.quotas
        self._limit = None
        if quotas is not None:
            self._limit = quotas.limits(context.principal.name, context.client_id or "").mutation
        self._strict = context.api_version >= strict_since
        self._context = context
        self.throttle_ms = 0

    @property
    def is_limited(self) -> bool:
        return self._limit is not None

    def refuses(self, partitions: int) -> bool:
        """Takes permits, or returns True if the quota rejects this change."""
        if self._quotas is None or self._limit is None:
            return False
        pause_ms = self._quotas.draw(self._limit, partitions, self._context.services.monotonic(), strict=self._strict)
        if not pause_ms:
            return False
        if not self.throttle_ms:
            self._quotas.count(self._limit.name, pause_ms)
        self.throttle_ms = max(self.throttle_ms, pause_ms)
        return self._strict


def start_creating(context: Context, names: Iterable[str]) -> tuple[dict[str | None, ErrorCode], int]:
    """Creates topics in the background that a client requested, as Kafka does.

    Returns the errors of those that cannot be created, and the throttle time in milliseconds.
    """
    services, quota = context.services, MutationQuota(context, METADATA_STRICT_SINCE)
    wanted = [services.settings.automatic_topic(services.image, name) for name in dict.fromkeys(names)]
    results = services.metadata.changes.start_creating(
        wanted, lambda topic: quota.refuses(topic.partitions), by=context.requester
    )
    return {result.name: result.error for result in results}, quota.throttle_ms


async def create_topics(context: Context, wanted: Sequence[NewTopic], *, validate_only: bool) -> Results:
    metadata, quota = context.services.metadata, MutationQuota(context, CREATE_TOPICS_STRICT_SINCE)
    refused: set[str | None] = set()
    if quota.is_limited:
        checked = await metadata.changes.create_topics(wanted, validate_only=True)
        refused = {each.name for each in checked if each.error == ErrorCode.NONE and quota.refuses(each.partitions)}
    allowed = [topic for topic in wanted if topic.name not in refused]
    results = await metadata.changes.create_topics(allowed, validate_only=validate_only, by=context.requester)
    return results + _refused(refused), quota.throttle_ms


async def create_partitions(context: Context, wanted: Sequence[MorePartitions], *, validate_only: bool) -> Results:
    metadata, quota = context.services.metadata, MutationQuota(context, CREATE_PARTITIONS_STRICT_SINCE)
    refused: set[str | None] = set()
    if quota.is_limited:
        topics = context.services.image.topics
        checked = await metadata.changes.create_partitions(wanted, validate_only=True)
        possible = {each.name for each in checked if each.error == ErrorCode.NONE}
        refused = {
            each.name
            for each in wanted
            if each.name in possible and quota.refuses(each.total - len(topics[each.name].partitions))
        }
    allowed = [each for each in wanted if each.name not in refused]
    results = await metadata.changes.create_partitions(allowed, validate_only=validate_only, by=context.requester)
    return results + _refused(refused), quota.throttle_ms


async def delete_topics(context: Context, references: Sequence[TopicReference]) -> Results:
    metadata, quota = context.services.metadata, MutationQuota(context, DELETE_TOPICS_STRICT_SINCE)
    allowed, refused = list(references), []
    if quota.is_limited:
        image, allowed = context.services.image, []
        for reference in references:
            by_id = reference.topic_id != ZERO_UUID
            found = image.find_topic_by_id(reference.topic_id) if by_id else image.topics.get(reference.name or "")
            if found is not None and quota.refuses(len(found.partitions)):
                refused.append(_result(reference.name or found.name, reference.topic_id))
            else:
                allowed.append(reference)
    return await metadata.changes.delete_topics(allowed, by=context.requester) + refused, quota.throttle_ms


def _refused(names: Iterable[str | None]) -> list[TopicResult]:
    return [_result(name) for name in names]


def _result(name: str | None, topic_id: bytes = ZERO_UUID) -> TopicResult:
    return TopicResult(name, ErrorCode.THROTTLING_QUOTA_EXCEEDED, topic_id=topic_id)
