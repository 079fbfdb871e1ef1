"""The rules of OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete. Pure."""

from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.coordinator.effects import Effects, RequestInfo
from ottla.coordinator.group.classic_group import ClassicGroup, GroupState, Member
from ottla.coordinator.group.offsets import Offsets
from ottla.coordinator.group.rebalance import ClassicRebalance
from ottla.coordinator.group.records import CommittedOffset, TopicCommit, read_offset_value, value_of
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from ottla.protocol.wire_values import CONSUMER
from ottla.types import ZERO_UUID

if TYPE_CHECKING:
    from ottla.metadata.image import ClusterImage

COMMIT_BY_ID_SINCE = 10
TRANSACTIONAL_COMMIT_BY_ID_SINCE = 6
GROUP_NOT_FOUND_SINCE = 9
TRANSACTIONAL_GROUP_NOT_FOUND_SINCE = 6


class FetchedPartition(NamedTuple):
    """The result of OffsetFetch for one partition."""

    partition: int
    committed: CommittedOffset | None
    error: ErrorCode


class FetchedTopic(NamedTuple):
    """The result of OffsetFetch for one topic, by name or by id as in the request."""

    name: str
    topic_id: bytes
    partitions: list[FetchedPartition]


class OffsetRequests:
    """The rules of requests about offsets."""

    def __init__(self, offsets: Offsets, rebalance: ClassicRebalance) -> None:
        self._offsets = offsets
        self._rebalance = rebalance
        self._groups = rebalance.groups
        self._metadata_max_bytes = rebalance.config.offset_metadata_max_bytes
        self.image: ClusterImage | None = None

    # --- commit -------------------------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[OffsetCommitResponse]:
        effects: Effects[OffsetCommitResponse] = Effects()
        error = ErrorCode.NONE
        try:
            self._check_committer(request, info.api_version, now)
        except KafkaError as refused:
            error = refused.code
        # -1, and every version without the field, means the broker's setting.
        expires_at = now + request.retention_time_ms if request.retention_time_ms >= 0 else -1
        by_id = info.api_version >= COMMIT_BY_ID_SINCE
        topics = self._commit(request, OffsetCommitResponse, by_id, error, expires_at, now, effects)
        effects.reply(request_id, OffsetCommitResponse(topics=topics))
        return effects

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[TxnOffsetCommitResponse]:
        """Like `commit`, but in the producer's transaction: pending until its marker is written."""
        effects: Effects[TxnOffsetCommitResponse] = Effects(producer=(request.producer_id, request.producer_epoch))
        error = ErrorCode.NONE
        try:
            self._check_transactional_committer(request, info.api_version)
        except KafkaError as refused:
            error = refused.code
        by_id = info.api_version >= TRANSACTIONAL_COMMIT_BY_ID_SINCE
        topics = self._commit(request, TxnOffsetCommitResponse, by_id, error, -1, now, effects)
        effects.reply(request_id, TxnOffsetCommitResponse(topics=topics))
        return effects

    def _check_committer(self, request: OffsetCommitRequest, api_version: int, now: int) -> None:
        generation = request.generation_id_or_member_epoch
        group = self._groups.get(request.group_id)
        if group is None:
            # Without a generation: from an admin client, or a consumer that only stores its offsets here.
            if generation < 0:
                return
            knows_code = api_version >= GROUP_NOT_FOUND_SINCE
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if knows_code else ErrorCode.ILLEGAL_GENERATION)
        if generation < 0 and group.is_empty:
            return
        member = self._identify(group, request)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} has active members; only they can commit"
            )
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The member knows the new generation, but not yet what it will own in it.
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._rebalance.restart_session(group, member, now)

    def _check_transactional_committer(self, request: TxnOffsetCommitRequest, api_version: int) -> None:
        generation = request.generation_id_or_member_epoch
        group = self._groups.get(request.group_id)
        if group is None:
            if generation >= 0:
                knows_code = api_version >= TRANSACTIONAL_GROUP_NOT_FOUND_SINCE
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if knows_code else ErrorCode.ILLEGAL_GENERATION)
        elif generation >= 0 or not group.is_empty:
            # Versions before 3 do not name a member; the transaction itself fences them (KIP-447).
            self._identify(group, request)

    @staticmethod
    def _identify(group: ClassicGroup, request: Any) -> Member | None:
        """The member that commits; None if the request names none. Raises KafkaError for a stale or unknown member."""
        generation = request.generation_id_or_member_epoch
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            return None
        member = group.member(request.member_id, request.group_instance_id)
        group.check_generation(generation)
        return member

    def _commit(
        self,
        request: Any,
        response_class: Any,
        by_id: bool,
        error: ErrorCode,
        expires_at: int,
        now: int,
        effects: Effects[Any],
    ) -> list[Any]:
        """Adds the records of a commit to `effects` and returns the answer for each partition."""
        kind = response_class.__name__
        make_topic = getattr(response_class, f"{kind}Topic")
        make_partition = getattr(response_class, f"{kind}Partition")
        group_id = request.group_id
        add: Any = effects.records.append
        answered = []
        for topic in request.topics:
            name, topic_id, partition_count, unknown = self._resolve(topic, by_id)
            commit = TopicCommit(group_id, name, topic_id, now, expires_at)
            answers = []
            for part in topic.partitions:
                index, metadata = part.partition_index, part.committed_metadata or ""
                if not 0 <= index < partition_count:
                    code = unknown
                elif error is not ErrorCode.NONE:
                    code = error
                elif len(metadata) * 2 > self._metadata_max_bytes < utf16_length(metadata):
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    code = ErrorCode.NONE
                    add(commit.record(index, part.committed_offset, part.committed_leader_epoch, metadata))
                answers.append(make_partition(partition_index=index, error_code=code))
            answered.append(make_topic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
        return answered

    def _resolve(self, topic: Any, by_id: bool) -> tuple[str, bytes, int, ErrorCode]:
        """(name, id, number of partitions, error code for a partition that does not exist)."""
        image = self.image
        assert image is not None, "a shard gets an image before its first request"
        name = image.topic_names.get(topic.topic_id) if by_id else topic.name
        known = None if name is None else image.topics.get(name)
        if known is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return "", ZERO_UUID, 0, unknown
        return known.name, known.topic_id, len(known.partitions), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # --- fetch --------------------------------------------------------------------------------------------

    def fetch(
        self, group_id: str, topics: list[tuple[str, bytes, list[int]]] | None, require_stable: bool, by_id: bool
    ) -> list[FetchedTopic]:
        """What was committed for (topic, id, partitions), or everything. With `require_stable`, partitions whose offset
        an open transaction may change get UNSTABLE_OFFSET_COMMIT."""
        known = self._offsets.of(group_id)
        if topics is None:
            topics = self.committed_topics(group_id, by_id)
        found = []
        for name, topic_id, partitions in topics:
            committed = known.get(name, {})
            answers = []
            for partition in partitions:
                stored = committed.get(partition)
                if require_stable and self._offsets.is_pending(group_id, name, partition):
                    answers.append(FetchedPartition(partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                    continue
                offset = None if stored is None else read_offset_value(value_of(stored))
                if offset is not None and by_id and offset.topic_id not in (ZERO_UUID, topic_id):
                    # Committed for a topic of the same name that has been deleted since.
                    offset = None
                answers.append(FetchedPartition(partition, offset, ErrorCode.NONE))
            found.append(FetchedTopic(name, topic_id, answers))
        return found

    def committed_topics(self, group_id: str, by_id: bool) -> list[tuple[str, bytes, list[int]]]:
        """Everything that a group has committed, as (topic, id, partitions). Topics without an id cannot be returned by
        id."""
        topics = [
            (name, self._topic_id(name), sorted(partitions))
            for name, partitions in sorted(self._offsets.of(group_id).items())
        ]
        return [topic for topic in topics if topic[1] != ZERO_UUID] if by_id else topics

    def _topic_id(self, name: str) -> bytes:
        topic = self.image.topics.get(name) if self.image is not None else None
        return ZERO_UUID if topic is None else topic.topic_id

    # --- delete -------------------------------------------------------------------------------------------

    def delete(self, request: OffsetDeleteRequest, request_id: int) -> Effects[OffsetDeleteResponse]:
        effects: Effects[OffsetDeleteResponse] = Effects()
        group = self._groups.get(request.group_id)
        if group is None:
            effects.reply(request_id, OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
            return effects
        if not group.is_empty and group.protocol_type != CONSUMER:
            # What members of other protocol types consume is unknown.
            effects.reply(request_id, OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
            return effects
        topics = []
        for topic in request.topics:
            _, _, partition_count, unknown = self._resolve(topic, False)
            is_subscribed = not group.is_empty and group.is_subscribed(topic.name)
            answers = []
            for part in topic.partitions:
                code = ErrorCode.NONE
                if not 0 <= part.partition_index < partition_count:
                    code = unknown
                elif is_subscribed:
                    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                else:
                    self._offsets.delete(group.group_id, [(topic.name, part.partition_index)], effects)
                answers.append(
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=part.partition_index, error_code=code
                    )
                )
            topics.append(OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
        effects.reply(request_id, OffsetDeleteResponse(topics=topics))
        return effects


def utf16_length(text: str) -> int:
    """Kafka measures metadata in UTF-16 code units, although the setting says bytes.

    >>> utf16_length("žluť"), utf16_length("\N{CAT}")
    (4, 2)
    """
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
