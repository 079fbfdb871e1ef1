"""One partition of `__consumer_offsets` as a state machine: routes requests, replays records. Pure."""

from collections.abc import Callable
from typing import Any

from ottla.coordinator.effects import Deadlines, Effects, RequestInfo
from ottla.coordinator.group.classic_group import CONSUMER, ClassicGroup, GroupState, Member
from ottla.coordinator.group.config import GroupConfig
from ottla.coordinator.group.offsets import Offsets
from ottla.coordinator.group.rebalance import ClassicRebalance, Due
from ottla.coordinator.group.records import (
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    CommittedOffset,
    group_key,
    offset_key,
    offset_value,
    read_group_key,
    read_group_value,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.image import ClusterImage
from ottla.protocol.messages.describe_groups import DescribeGroupsResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.list_groups import ListGroupsResponse
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from ottla.types import ZERO_UUID

_EXPIRE = Due("expire", "")


class GroupShard:
    """The groups whose ids hash to one partition."""

    def __init__(self, config: GroupConfig, make_uuid: Callable[[], str]) -> None:
        self._config = config
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = Offsets(config)
        self._deadlines = Deadlines()
        self._rebalance = ClassicRebalance(config, self.groups, self._deadlines, make_uuid)
        self._image: ClusterImage | None = None
        self._is_loaded = False

    # --- the log ------------------------------------------------------------------------------------------

    def replay(
        self,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        kind = -1 if key is None or len(key) < 2 else key[0] << 8 | key[1]
        if kind in (OFFSET_COMMIT, LEGACY_OFFSET_COMMIT):
            assert key is not None
            group_id = self.offsets.replay(offset, key, value, producer_id)
            if value is not None and group_id not in self.groups:
                self.groups[group_id] = ClassicGroup(group_id, timestamp)
        elif kind == GROUP_METADATA:
            assert key is not None
            self._replay_group(read_group_key(key), value, timestamp)
        # Other kinds belong to group types this coordinator does not have yet.

    def _replay_group(self, group_id: str, value: bytes | None, timestamp: int) -> None:
        if value is None:
            self.groups.pop(group_id, None)
        elif not self._is_loaded:
            # Live, the group in memory is what the record was made from; it may even have moved on since.
            self.groups[group_id] = ClassicGroup.from_record(group_id, read_group_value(value), timestamp)

    def replay_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        self.offsets.replay_marker(producer_id, commit)

    def on_loaded(self, now: int) -> Effects:
        self._is_loaded = True
        for group in self.groups.values():
            self._rebalance.start_sessions(group, now)
        self._deadlines.add(now + self._config.offsets_retention_check_interval_ms, _EXPIRE)
        return Effects()

    def on_unloaded(self) -> Effects:
        effects = Effects()
        for group in self.groups.values():
            for member in group.members.values():
                for waiting in (member.join, member.sync):
                    if waiting is not None:
                        effects.reply(waiting.request_id, KafkaError(ErrorCode.NOT_COORDINATOR))
        return effects

    def on_image(self, image: ClusterImage, now: int) -> Effects:
        effects = Effects()
        previous, self._image = self._image, image
        if previous is not None and self._is_loaded and previous.topics is not image.topics:
            gone = {
                name
                for name, topic in previous.topics.items()
                if (kept := image.topics.get(name)) is None or kept.topic_id != topic.topic_id
            }
            if gone:
                self.offsets.delete_topics(gone, effects)
        return effects

    def tick(self, now: int) -> Effects:
        effects = Effects()
        for when, due in self._deadlines.due(now):
            if due is _EXPIRE:
                self._expire(now, effects)
                self._deadlines.add(now + self._config.offsets_retention_check_interval_ms, _EXPIRE)
            else:
                self._rebalance.due(when, due, now, effects)
        return effects

    def next_deadline(self) -> int | None:
        return self._deadlines.next()

    def _expire(self, now: int, effects: Effects) -> None:
        for group_id, group in self.groups.items():
            expired = self.offsets.expired(group_id, group, now)
            self.offsets.delete(group_id, expired, effects)
            is_unused = group.is_empty and not group.pending_members
            nothing_left = len(expired) == len(self.offsets.of(group_id)) and not self.offsets.pending_of(group_id)
            if is_unused and nothing_left:
                effects.append(group_key(group_id), None)

    # --- membership ---------------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, info: RequestInfo, request_id: int, now: int) -> Effects:
        return self._rebalance.join(request, info, request_id, now)

    def sync(self, request: SyncGroupRequest, info: RequestInfo, request_id: int, now: int) -> Effects:
        return self._rebalance.sync(request, info, request_id, now)

    def heartbeat(self, request: HeartbeatRequest, request_id: int, now: int) -> Effects:
        effects = Effects()
        try:
            effects.reply(request_id, self._rebalance.heartbeat(request, now))
        except KafkaError as error:
            effects.reply(request_id, HeartbeatResponse(error_code=error.code))
        return effects

    def leave(self, request: LeaveGroupRequest, info: RequestInfo, request_id: int, now: int) -> Effects:
        return self._rebalance.leave(request, info, request_id, now)

    # --- offsets ------------------------------------------------------------------------------------------

    def commit_offsets(self, request: OffsetCommitRequest, info: RequestInfo, request_id: int, now: int) -> Effects:
        effects = Effects()
        group = self.groups.get(request.group_id)
        try:
            self._check_committer(group, request, info.api_version, now)
            error = ErrorCode.NONE
        except KafkaError as refused:
            error = refused.code
        expire = now + request.retention_time_ms if request.retention_time_ms >= 0 else -1
        effects.reply(
            request_id,
            OffsetCommitResponse(
                topics=self._commit(request, OffsetCommitResponse, info.api_version >= 10, error, expire, now, effects)
            ),
        )
        return effects

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects:
        """TxnOffsetCommit: the same records inside the producer's transaction, pending until its marker."""
        effects = Effects(producer=(request.producer_id, request.producer_epoch))
        group = self.groups.get(request.group_id)
        error = ErrorCode.NONE
        try:
            self._check_transactional_committer(group, request)
        except KafkaError as refused:
            error = refused.code
        effects.reply(
            request_id,
            TxnOffsetCommitResponse(
                topics=self._commit(request, TxnOffsetCommitResponse, info.api_version >= 6, error, -1, now, effects)
            ),
        )
        return effects

    def _commit(
        self,
        request: Any,
        response_class: Any,
        by_id: bool,
        error: ErrorCode,
        expire_timestamp: int,
        now: int,
        effects: Effects,
    ) -> list[Any]:
        """The records of a commit, and what each partition is answered."""
        kind = response_class.__name__
        make_topic = getattr(response_class, f"{kind}Topic")
        make_partition = getattr(response_class, f"{kind}Partition")
        answered = []
        for topic in request.topics:
            name, topic_id, refused = self._resolve(topic, by_id)
            answers = []
            for part in topic.partitions:
                metadata = part.committed_metadata or ""
                code = error if error is not ErrorCode.NONE else refused
                if code is not ErrorCode.NONE:
                    pass
                elif len(metadata.encode()) > self._config.offset_metadata_max_bytes:
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    committed = CommittedOffset(
                        part.committed_offset,
                        part.committed_leader_epoch,
                        metadata,
                        now,
                        expire_timestamp,
                        topic_id,
                        -1,
                    )
                    effects.append(offset_key(request.group_id, name, part.partition_index), offset_value(committed))
                answers.append(make_partition(partition_index=part.partition_index, error_code=code))
            answered.append(make_topic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
        return answered

    def _resolve(self, topic: Any, by_id: bool) -> tuple[str, bytes, ErrorCode]:
        """(name, id, error) of a topic that a request names in its version's way."""
        image = self._image
        if by_id:
            name = image.topic_names.get(topic.topic_id) if image is not None else None
            if name is None:
                return "", topic.topic_id, ErrorCode.UNKNOWN_TOPIC_ID
            return name, topic.topic_id, ErrorCode.NONE
        known = image.topics.get(topic.name) if image is not None else None
        if known is None:
            return topic.name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return topic.name, known.topic_id, ErrorCode.NONE

    def _check_committer(
        self, group: ClassicGroup | None, request: OffsetCommitRequest, api_version: int, now: int
    ) -> None:
        generation = request.generation_id_or_member_epoch
        if group is None:
            if generation < 0:
                return
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if api_version >= 9 else ErrorCode.ILLEGAL_GENERATION)
        member = self._check_identity(group, generation, request.member_id, request.group_instance_id)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        if member is not None:
            self._rebalance.restart_session(group, member, now)

    def _check_transactional_committer(self, group: ClassicGroup | None, request: TxnOffsetCommitRequest) -> None:
        generation = request.generation_id_or_member_epoch
        if group is None:
            if generation >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            return
        if generation >= 0 or request.member_id or request.group_instance_id is not None:
            group.member(request.member_id, request.group_instance_id)
            if generation != group.generation:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"{generation} is not {group.generation}")

    @staticmethod
    def _check_identity(group: ClassicGroup, generation: int, member_id: str, instance_id: str | None) -> Member | None:
        """The member that commits, None for an outsider who may; raises for everyone else."""
        if generation < 0 and group.is_empty:
            return None
        if generation >= 0 or member_id or instance_id is not None:
            member = group.member(member_id, instance_id)
            if generation != group.generation:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"{generation} is not {group.generation}")
            return member
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} has members of its own")

    def fetch_offsets(
        self, group_id: str, topics: list[tuple[str, bytes, list[int]]] | None, require_stable: bool, by_id: bool
    ) -> list[tuple[str, bytes, list[tuple[int, CommittedOffset | None, ErrorCode]]]]:
        """(topic, id, [(partition, committed or None, error)]) for what is asked, or for everything committed."""
        known = self.offsets.of(group_id)
        unstable = self.offsets.pending_of(group_id) if require_stable else set()
        if topics is None:
            everything: dict[str, list[int]] = {}
            for name, partition in sorted(known):
                everything.setdefault(name, []).append(partition)
            topics = [(name, self._topic_id(name), partitions) for name, partitions in everything.items()]
        found = []
        for name, topic_id, partitions in topics:
            answers = []
            for partition in partitions:
                committed = known.get((name, partition))
                if committed is not None and by_id and committed.topic_id not in (ZERO_UUID, topic_id):
                    # Committed to a topic of the same name that was deleted since.
                    committed = None
                code = ErrorCode.NONE
                if (name, partition) in unstable:
                    committed, code = None, ErrorCode.UNSTABLE_OFFSET_COMMIT
                answers.append((partition, committed, code))
            found.append((name, topic_id, answers))
        return found

    def _topic_id(self, name: str) -> bytes:
        topic = self._image.topics.get(name) if self._image is not None else None
        return ZERO_UUID if topic is None else topic.topic_id

    def delete_offsets(self, request: OffsetDeleteRequest, request_id: int) -> Effects:
        effects = Effects()
        group = self.groups.get(request.group_id)
        if group is None:
            effects.reply(request_id, OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
            return effects
        if not group.is_empty and group.protocol_type != CONSUMER:
            effects.reply(request_id, OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
            return effects
        topics = []
        for topic in request.topics:
            subscribed = not group.is_empty and group.is_subscribed(topic.name)
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            indexes = [part.partition_index for part in topic.partitions]
            if not subscribed:
                self.offsets.delete(group.group_id, [(topic.name, index) for index in indexes], effects)
            topics.append(
                OffsetDeleteResponse.OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponse.OffsetDeleteResponsePartition(partition_index=index, error_code=code)
                        for index in indexes
                    ],
                )
            )
        effects.reply(request_id, OffsetDeleteResponse(topics=topics))
        return effects

    # --- groups as a whole --------------------------------------------------------------------------------

    def describe(self, group_id: str, api_version: int) -> DescribeGroupsResponse.DescribedGroup:
        group = self.groups.get(group_id)
        if group is None:
            described = DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state=GroupState.DEAD)
            if api_version >= 6:
                described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                described.error_message = f"Group {group_id} not found."
            return described
        stable = group.state is GroupState.STABLE
        return DescribeGroupsResponse.DescribedGroup(
            group_id=group_id,
            group_state=group.state,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if stable else "",
            members=[
                DescribeGroupsResponse.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata_for(group.protocol) if stable else b"",
                    member_assignment=member.assignment if stable else b"",
                )
                for member in group.members.values()
            ],
        )

    def list(self, states: set[str], types: set[str]) -> list[ListGroupsResponse.ListedGroup]:
        """Filters are lower-case; an empty one lets everything through."""
        if types and "classic" not in types:
            return []
        return [
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state,
                group_type="classic",
            )
            for group in self.groups.values()
            if not states or group.state.lower() in states
        ]

    def delete_group(self, group_id: str, request_id: int) -> Effects:
        """Replies with the error code."""
        effects = Effects()
        group = self.groups.get(group_id)
        if group is None:
            effects.reply(request_id, ErrorCode.GROUP_ID_NOT_FOUND)
        elif not group.is_empty:
            effects.reply(request_id, ErrorCode.NON_EMPTY_GROUP)
        else:
            everything = self.offsets.of(group_id).keys() | self.offsets.pending_of(group_id)
            self.offsets.delete(group_id, sorted(everything), effects)
            effects.append(group_key(group_id), None)
            effects.reply(request_id, ErrorCode.NONE)
        return effects
