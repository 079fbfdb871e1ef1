"""One partition of `__consumer_offsets` as a state machine: routes requests, replays records. Pure."""

from collections.abc import Callable, Iterable
from typing import Any

from ottla.coordinator.effects import Deadlines, Effects, RequestInfo
from ottla.coordinator.group.classic_group import ClassicGroup, GroupState
from ottla.coordinator.group.config import GroupConfig
from ottla.coordinator.group.joining import Joining
from ottla.coordinator.group.membership import Membership
from ottla.coordinator.group.metadata_usage import MetadataUsage
from ottla.coordinator.group.offset_requests import FetchedTopic, OffsetRequests
from ottla.coordinator.group.offsets import Offsets
from ottla.coordinator.group.rebalance import ClassicRebalance, Due, join_error
from ottla.coordinator.group.records import (
    GROUP_KEY_TYPE,
    OFFSET_KEY_TYPES,
    group_key,
    group_value,
    read_group_key,
    read_group_value,
)
from ottla.errors import ErrorCode
from ottla.metadata.image import ClusterImage
from ottla.protocol.messages.describe_groups import DescribeGroupsResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.messages.list_groups import ListGroupsResponse
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

_EXPIRE = Due("expire", "")
_DELETE_TOPICS = Due("delete topics", "")

GROUPS_PER_STEP = 500
"""How many groups are checked in one step for expired offsets, or for offsets of deleted topics."""
GROUPS_AT_ONCE = 20
"""A topic is deleted on all shards in one step: with more groups than this, a shard does it in separate steps."""


class GroupShard:
    """The groups whose ids hash to one partition."""

    def __init__(
        self, config: GroupConfig, make_uuid: Callable[[], str], total_usage: Callable[[], int] | None = None
    ) -> None:
        """`total_usage` is the memory that members of all shards take; by default, this shard is the only one."""
        self._config = config
        self.groups: dict[str, ClassicGroup] = {}
        self.usage = MetadataUsage()
        self.offsets = Offsets(config)
        self.deadlines = Deadlines()
        self._rebalance = ClassicRebalance(
            config, self.groups, self.deadlines, self._partition_count, self.offsets.is_used_by
        )
        self._joining = Joining(self._rebalance, make_uuid, self.usage, total_usage)
        self._membership = Membership(self._rebalance)
        self._offset_requests = OffsetRequests(self.offsets, self._rebalance)
        self._image: ClusterImage | None = None
        self._is_loaded = False
        self._to_expire: list[str] = []
        """Groups that the current round of expiry has not checked yet."""
        self._deletions: list[tuple[dict[str, bytes], list[str]]] = []
        """Deleted topics (name to id), and the groups whose offsets of them have not been deleted yet."""

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
        if key is None:
            return
        kind = key[:2]
        if kind in OFFSET_KEY_TYPES:
            group_id = self.offsets.replay(offset, key, value, producer_id)
            if value is not None and group_id not in self.groups:
                self.groups[group_id] = ClassicGroup(group_id, timestamp, self.usage)
        elif kind == GROUP_KEY_TYPE:
            self._replay_group(read_group_key(key), value, timestamp)
        # Other kinds belong to group types that this coordinator does not support yet.

    def _replay_group(self, group_id: str, value: bytes | None, timestamp: int) -> None:
        if value is not None and self._is_loaded:
            # A live shard wrote this record from the group in memory, which may have changed since.
            return
        before = self.groups.pop(group_id, None)
        if before is not None:
            before.forget_members()
        if value is not None:
            record = read_group_value(value)
            self.groups[group_id] = ClassicGroup.from_record(group_id, record, timestamp, self.usage)

    def replay_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        self.offsets.replay_marker(producer_id, commit)

    def hard_state(self) -> dict[str, object]:
        """Groups as their records, committed offsets, and offsets pending in transactions.

        Left out, because the log does not hold it: deadlines, waiting requests, member ids that were returned but not
        used yet, and a group that is rebalancing. Such a group keeps its last record until the rebalance ends. A simple
        group is only as much as its offsets: compaction may remove the last trace of one that has none.
        """
        state = self.offsets.hard_state()
        for group_id, group in self.groups.items():
            if group.state is GroupState.STABLE or (group.is_empty and not group.is_simple):
                state[f"group {group_id}"] = (group.state, group_value(group.to_record()))
        return state

    def on_loaded(self, now: int) -> Effects[None]:
        effects: Effects[None] = Effects()
        self._is_loaded = True
        self.offsets.on_loaded()
        for group in self.groups.values():
            self._rebalance.after_load(group, now, effects)
        self.deadlines.add(now + self._config.offsets_retention_check_interval_ms, _EXPIRE)
        return effects

    def on_unloaded(self) -> Effects[None]:
        effects: Effects[Any] = Effects()
        code = ErrorCode.NOT_COORDINATOR
        for group in self.groups.values():
            for member in group.members.values():
                if member.join is not None:
                    # It keeps its member id: the next coordinator knows it, unless it is new.
                    answer = join_error(code, member.join.api_version, member.member_id)
                    effects.reply(member.join.request_id, answer)
                if member.sync is not None:
                    effects.reply(member.sync.request_id, SyncGroupResponse(error_code=code))
        return effects

    def on_image(self, image: ClusterImage, now: int) -> Effects[None]:
        effects: Effects[None] = Effects()
        previous, self._image = self._image, image
        self._offset_requests.image = image
        if previous is not None and previous.topics is not image.topics:
            # Only topics that were in the previous image: this one may be older than a commit that another
            # coordinator accepted for a new topic.
            gone = {}
            for name in self.offsets.topics():
                before, after = previous.topics.get(name), image.topics.get(name)
                if before is not None and (after is None or after.topic_id != before.topic_id):
                    gone[name] = before.topic_id
            if gone:
                self._deletions.append((gone, self.offsets.groups()))
                if len(self._deletions[0][1]) <= GROUPS_AT_ONCE:
                    self._delete_topics(now, effects)
                else:
                    self.deadlines.add(now, _DELETE_TOPICS)
        return effects

    def _partition_count(self, topic: str) -> int | None:
        known = self._image.topics.get(topic) if self._image is not None else None
        return None if known is None else len(known.partitions)

    # --- time ---------------------------------------------------------------------------------------------

    def tick(self, now: int, held_ms: int = 0) -> Effects[None]:
        effects: Effects[None] = Effects()
        for when, due in self.deadlines.due(now):
            if due is _EXPIRE:
                self._expire(now, held_ms, effects)
            elif due is _DELETE_TOPICS:
                self._delete_topics(now, effects)
            else:
                self._rebalance.due(when, due, now, effects)
        return effects

    def next_deadline(self) -> int | None:
        return self.deadlines.next()

    def on_clock_jump(self, jump_ms: int) -> None:
        self.deadlines.shift(jump_ms)
        for group in self.groups.values():
            if not group.is_empty or group.pending_members:
                self._rebalance.shift_deadlines(group, jump_ms)

    def _expire(self, now: int, held_ms: int, effects: Effects[Any]) -> None:
        """Checks some groups and schedules the rest at once; after the last, the next round."""
        if not self._to_expire:
            self._to_expire = list(self.groups)
        for _ in range(min(GROUPS_PER_STEP, len(self._to_expire))):
            group = self.groups.get(self._to_expire.pop())
            if group is not None:
                self._expire_group(group, now - held_ms, effects)
        pause_ms = 0 if self._to_expire else self._config.offsets_retention_check_interval_ms
        self.deadlines.add(now + pause_ms, _EXPIRE)

    def _delete_topics(self, now: int, effects: Effects[Any]) -> None:
        """Deletes the offsets of deleted topics from some groups, and schedules the rest at once."""
        if not self._deletions:
            return
        topics, group_ids = self._deletions[0]
        for _ in range(min(GROUPS_PER_STEP, len(group_ids))):
            self.offsets.delete_topics(group_ids.pop(), topics, effects)
        if not group_ids:
            del self._deletions[0]
        if self._deletions:
            self.deadlines.add(now, _DELETE_TOPICS)

    def _expire_group(self, group: ClassicGroup, now: int, effects: Effects[Any]) -> None:
        expired = self.offsets.expired(group, now)
        self.offsets.delete(group.group_id, expired, effects)
        if group.is_empty and not group.pending_members and not self.offsets.has_pending(group.group_id):
            left = sum(map(len, self.offsets.of(group.group_id).values())) - len(expired)
            if not left:
                effects.append(group_key(group.group_id), None)

    # --- membership ---------------------------------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[JoinGroupResponse]:
        return self._joining.join(request, info, request_id, now)

    def sync(
        self, request: SyncGroupRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[SyncGroupResponse]:
        return self._membership.sync(request, info, request_id, now)

    def heartbeat(
        self, request: HeartbeatRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[HeartbeatResponse]:
        return self._membership.heartbeat(request, request_id, now)

    def leave(
        self, request: LeaveGroupRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[LeaveGroupResponse]:
        return self._membership.leave(request, info, request_id, now)

    # --- offsets ------------------------------------------------------------------------------------------

    def commit_offsets(
        self, request: OffsetCommitRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[OffsetCommitResponse]:
        return self._offset_requests.commit(request, info, request_id, now)

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[TxnOffsetCommitResponse]:
        return self._offset_requests.commit_in_transaction(request, info, request_id, now)

    def fetch_offsets(
        self, group_id: str, topics: list[tuple[str, bytes, list[int]]] | None, require_stable: bool, by_id: bool
    ) -> list[FetchedTopic]:
        return self._offset_requests.fetch(group_id, topics, require_stable, by_id)

    def committed_topics(self, group_id: str, by_id: bool) -> list[tuple[str, bytes, list[int]]]:
        return self._offset_requests.committed_topics(group_id, by_id)

    def delete_offsets(
        self, request: OffsetDeleteRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[OffsetDeleteResponse]:
        return self._offset_requests.delete(request, request_id)

    # --- groups as a whole --------------------------------------------------------------------------------

    def describe(self, group_id: str, api_version: int) -> DescribeGroupsResponse.DescribedGroup:
        group = self.groups.get(group_id)
        if group is None:
            described = DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state=GroupState.DEAD)
            if api_version >= 6:
                described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                described.error_message = f"Group {group_id} not found."
            return described
        is_stable = group.state is GroupState.STABLE
        return DescribeGroupsResponse.DescribedGroup(
            group_id=group_id,
            group_state=group.state,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if is_stable else "",
            members=[
                DescribeGroupsResponse.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata_for(group.protocol) if is_stable else b"",
                    # While the group rebalances, members keep consuming what they had.
                    member_assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        )

    def delete_group(self, group_id: str, request_id: int) -> Effects[ErrorCode]:
        """Replies with the error code."""
        effects: Effects[ErrorCode] = Effects()
        group = self.groups.get(group_id)
        if group is None:
            effects.reply(request_id, ErrorCode.GROUP_ID_NOT_FOUND)
        elif not group.is_empty:
            effects.reply(request_id, ErrorCode.NON_EMPTY_GROUP)
        else:
            self.offsets.delete(group_id, list(self.offsets.partitions_of(group_id)), effects)
            effects.append(group_key(group_id), None)
            effects.reply(request_id, ErrorCode.NONE)
        return effects


def listed(groups: Iterable[ClassicGroup], states: set[str], types: set[str]) -> list[ListGroupsResponse.ListedGroup]:
    """How ListGroups shows groups. The filters are in lower case; an empty one matches everything."""
    if types and "classic" not in types:
        return []
    return [
        ListGroupsResponse.ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state,
            group_type="classic",
        )
        for group in groups
        if not states or group.state.lower() in states
    ]
