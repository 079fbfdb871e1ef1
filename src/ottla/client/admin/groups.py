"""The admin's calls about groups: list, describe, offsets, members, delete. Mixed into AsyncAdmin and Admin.

A group's coordinator is looked up for every try: one that moved, loads or is not there yet (NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE) is asked for again until it answers or time is up.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ottla.client.admin.admin_arguments import as_names, as_partitions, by_partition
from ottla.client.admin.group_model import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
    classic_group,
    consumer_group,
)
from ottla.client.consumer.consumer_arguments import ByPartition, PartitionLike
from ottla.client.core.model import Node, error_of
from ottla.client.core.network import Network
from ottla.client.core.offset_lookup import NO_RETRY
from ottla.client.core.polling import ANY_NODE
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.types import TopicPartition

T = TypeVar("T")

GROUP_KEY = 0
MAX_VERSION_WITH_NAMES = 9
"""From version 10 on OffsetCommit and OffsetFetch name topics by id, of which a deleted topic has none."""

Request = Callable[[int], Any]


class AsyncGroupAdmin:
    """The part of AsyncAdmin that is about groups."""

    _network: Network

    async def find_coordinators(self, group_ids: Sequence[str]) -> dict[str, Node]:
        """The broker that coordinates each group (whether or not the group is there)."""
        group_ids = as_names(group_ids, "groups")
        return await self._until_done(lambda: self._coordinators(group_ids))

    async def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """Every group of the cluster, by name; only those in `states` (Stable, Empty …) and of `types` (classic …).

        >>> await admin.list_groups(states=["Stable"])
        """
        wanted_states, wanted_types = as_names(states, "states"), as_names(types, "types")

        def request(version: int) -> ListGroupsRequest:
            if (wanted_states and version < 4) or (wanted_types and version < 5):
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker cannot filter groups")
            return ListGroupsRequest(states_filter=wanted_states, types_filter=wanted_types)

        async def of(node_id: int) -> list[GroupListing]:
            async def attempt() -> list[GroupListing]:
                response = await self._send(ApiKey.LIST_GROUPS, request, node_id)
                raise_for(response.error_code, f"listing the groups of broker {node_id}")
                return [
                    GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type, node_id)
                    for g in response.groups
                ]

            return await self._until_done(attempt)

        await self._network.until_connected()
        found = await asyncio.gather(*(of(node_id) for node_id in sorted(self._network.view.brokers)))
        # A coordinator that moves while we ask may have been seen on both sides.
        by_id = {group.group_id: group for groups in found for group in groups}
        return [by_id[group_id] for group_id in sorted(by_id)]

    async def describe_groups(self, group_ids: Sequence[str]) -> list[GroupDescription]:
        """Groups with their members, in the order asked; raises GROUP_ID_NOT_FOUND for a missing one."""
        group_ids = as_names(group_ids, "groups")
        found: dict[str, GroupDescription] = {}

        async def attempt() -> list[GroupDescription]:
            await self._describe([group_id for group_id in group_ids if group_id not in found], found)
            return [found[group_id] for group_id in group_ids]

        return await self._until_done(attempt)

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[PartitionLike] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """The committed position of each partition that has one (of all, or of those named).

        With `require_stable` it waits for open transactions that are about to commit positions.
        """
        wanted = None if partitions is None else by_topic(as_partitions(partitions))

        def request(version: int) -> OffsetFetchRequest:
            if version >= 8:
                topics = OffsetFetchRequest.OffsetFetchRequestTopics
                asked = None if wanted is None else [topics(name=n, partition_indexes=p) for n, p in wanted.items()]
                group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=asked)
                return OffsetFetchRequest(groups=[group], require_stable=require_stable)
            old = OffsetFetchRequest.OffsetFetchRequestTopic
            named = None if wanted is None else [old(name=n, partition_indexes=p) for n, p in wanted.items()]
            message = OffsetFetchRequest(group_id=group_id, topics=named)
            if require_stable and version < 7:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker cannot wait for stable offsets")
            message.require_stable = require_stable
            return message

        async def attempt() -> dict[TopicPartition, CommittedOffset]:
            response = await self._ask_coordinator(ApiKey.OFFSET_FETCH, request, group_id, MAX_VERSION_WITH_NAMES)
            answer = response.groups[0] if response.groups else response
            doing = f"reading the offsets of group {group_id}"
            raise_for(answer.error_code, doing)
            committed = {}
            for topic in answer.topics:
                for p in topic.partitions:
                    partition = TopicPartition(topic.name, p.partition_index)
                    raise_for(p.error_code, f"{doing}: {partition}")
                    if p.committed_offset >= 0:
                        offset = CommittedOffset(p.committed_offset, p.committed_leader_epoch, p.metadata or "")
                        committed[partition] = offset
            return dict(sorted(committed.items()))

        return await self._until_done(attempt)

    async def alter_group_offsets(self, group_id: str, offsets: ByPartition[int | CommittedOffset]) -> None:
        """Commits positions for a group without members; raises UNKNOWN_MEMBER_ID while it has any.

        >>> await admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 42})
        """
        wanted = by_partition(offsets, "offsets", '{("orders", 0): 42}')
        done: set[TopicPartition] = set()

        async def attempt() -> None:
            missing = {partition: offset for partition, offset in wanted.items() if partition not in done}
            message = commit_request(group_id, missing)
            response = await self._ask_coordinator(
                ApiKey.OFFSET_COMMIT, fixed(message), group_id, MAX_VERSION_WITH_NAMES
            )
            self._check_partitions(response, f"committing offsets of group {group_id}", done)

        if offsets:
            await self._until_done(attempt)

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[PartitionLike]) -> None:
        """Forgets committed positions; raises GROUP_SUBSCRIBED_TO_TOPIC for a topic that is being consumed."""
        topics = [
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=p) for p in indexes],
            )
            for name, indexes in by_topic(as_partitions(partitions)).items()
        ]
        message = OffsetDeleteRequest(group_id=group_id, topics=topics)
        doing = f"deleting offsets of group {group_id}"

        async def attempt() -> None:
            response = await self._ask_coordinator(ApiKey.OFFSET_DELETE, fixed(message), group_id)
            raise_for(response.error_code, doing)
            self._check_partitions(response, doing, set())

        await self._until_done(attempt)

    async def delete_groups(self, group_ids: Sequence[str]) -> None:
        """Deletes groups without members, and their offsets; raises for the first that could not be.

        The others are deleted all the same.
        """
        group_ids = as_names(group_ids, "groups")
        done: set[str] = set()

        async def attempt() -> None:
            missing = [group_id for group_id in group_ids if group_id not in done]
            failure: KafkaError | None = None
            for node_id, part in group_by_node(await self._coordinators(missing)).items():
                message = DeleteGroupsRequest(groups_names=part)
                response = await self._send(ApiKey.DELETE_GROUPS, fixed(message), node_id)
                for result in response.results:
                    if result.error_code == ErrorCode.NONE:
                        done.add(result.group_id)
                        continue
                    error = failed(result.error_code, f"deleting group {result.group_id}", result.error_message)
                    failure = error if failure is None or not error.retriable else failure
            if failure is not None:
                raise failure

        await self._until_done(attempt)

    async def remove_members(
        self,
        group_id: str,
        *,
        member_ids: Sequence[str] = (),
        instance_ids: Sequence[str] = (),
        reason: str = "removed by an administrator",
    ) -> None:
        """Removes members by their id or, static ones, by their `group.instance.id`; without either, all of them.

        A consumer that still runs joins again by itself.
        """
        chosen = [(member_id, None) for member_id in as_names(member_ids, "member_ids")]
        chosen += [("", instance_id) for instance_id in as_names(instance_ids, "instance_ids")]  # type: ignore[misc]
        if not chosen:
            (group,) = await self.describe_groups([group_id])
            chosen = [(member.member_id, member.group_instance_id) for member in group.members]  # type: ignore[misc]
        if not chosen:
            return

        def request(version: int) -> LeaveGroupRequest:
            if version < 3:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker cannot remove members")
            identity = LeaveGroupRequest.MemberIdentity
            members = [identity(member_id=m, group_instance_id=i, reason=reason) for m, i in chosen]
            return LeaveGroupRequest(group_id=group_id, members=members)

        async def attempt() -> None:
            response = await self._ask_coordinator(ApiKey.LEAVE_GROUP, request, group_id)
            raise_for(response.error_code, f"removing members of group {group_id}")
            for member in response.members:
                name = member.group_instance_id or member.member_id
                raise_for(member.error_code, f"removing member {name} of group {group_id}")

        await self._until_done(attempt)

    # --- asking -------------------------------------------------------------------------------------------

    async def _until_done(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._network.retrying(attempt, final=NO_RETRY)

    async def _send(self, api_key: int, request: Request, node_id: int, max_version: int | None = None) -> Any:
        if node_id != ANY_NODE:
            await self._network.until_connected()
        answer = await self._network.request(api_key, request, destination=node_id, max_version=max_version)
        return answer.message

    async def _ask_coordinator(
        self, api_key: int, request: Request, group_id: str, max_version: int | None = None
    ) -> Any:
        """One request to the group's coordinator."""
        coordinators = await self._coordinators([group_id])
        return await self._send(api_key, request, coordinators[group_id].node_id, max_version)

    async def _coordinators(self, group_ids: Sequence[str]) -> dict[str, Node]:
        asked = list(dict.fromkeys(group_ids))

        def request(version: int) -> FindCoordinatorRequest:
            if version >= 4:
                return FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=asked)
            return FindCoordinatorRequest(key=asked[0], key_type=GROUP_KEY)

        found: dict[str, Node] = {}
        while asked:
            response = await self._send(ApiKey.FIND_COORDINATOR, request, ANY_NODE)
            # Before version 4 a request was about one key, and its answer does not repeat it.
            answers = {answer.key: answer for answer in response.coordinators} or {asked[0]: response}
            for group_id, answer in answers.items():
                raise_for(answer.error_code, f"finding the coordinator of group {group_id}", answer.error_message)
                found[group_id] = Node(answer.node_id, answer.host, answer.port)
            asked = [group_id for group_id in asked if group_id not in answers]
        return found

    async def _describe(self, group_ids: Sequence[str], found: dict[str, GroupDescription]) -> None:
        """Describes groups as classic ones and those that are not as the new kind; notes what it finds."""
        coordinators = await self._coordinators(group_ids)
        for node_id, asked in group_by_node(coordinators).items():
            message = DescribeGroupsRequest(groups=asked)
            response = await self._send(ApiKey.DESCRIBE_GROUPS, fixed(message), node_id)
            others = []
            for group in response.groups:
                if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == "Dead":
                    others.append(group.group_id)
                    continue
                raise_for(group.error_code, f"describing group {group.group_id}", group.error_message)
                found[group.group_id] = classic_group(group, coordinators[group.group_id])
            if others:
                await self._describe_new(others, coordinators, node_id, found)

    async def _describe_new(
        self, group_ids: list[str], coordinators: Mapping[str, Node], node_id: int, found: dict[str, GroupDescription]
    ) -> None:
        message = ConsumerGroupDescribeRequest(group_ids=group_ids)
        try:
            response = await self._send(ApiKey.CONSUMER_GROUP_DESCRIBE, fixed(message), node_id)
        except KafkaError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_ids[0]} does not exist") from None
        for group in response.groups:
            if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group.group_id} does not exist")
            raise_for(group.error_code, f"describing group {group.group_id}", group.error_message)
            found[group.group_id] = consumer_group(group, coordinators[group.group_id])

    @staticmethod
    def _check_partitions(response: Any, doing: str, done: set[TopicPartition]) -> None:
        failure: KafkaError | None = None
        for topic in response.topics:
            for p in topic.partitions:
                partition = TopicPartition(topic.name, p.partition_index)
                if p.error_code == ErrorCode.NONE:
                    done.add(partition)
                elif failure is None or failure.retriable:
                    failure = failed(p.error_code, f"{doing}: {partition}")
        if failure is not None:
            raise failure


class GroupAdmin:
    """The part of Admin that is about groups: each call of AsyncGroupAdmin, waited for."""

    _async: Any
    _call: Callable[[Coroutine[Any, Any, Any]], Any]

    def find_coordinators(self, group_ids: Sequence[str]) -> dict[str, Node]:
        return self._call(self._async.find_coordinators(group_ids))

    def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        return self._call(self._async.list_groups(states=states, types=types))

    def describe_groups(self, group_ids: Sequence[str]) -> list[GroupDescription]:
        return self._call(self._async.describe_groups(group_ids))

    def list_group_offsets(
        self, group_id: str, partitions: Iterable[PartitionLike] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        return self._call(self._async.list_group_offsets(group_id, partitions, require_stable=require_stable))

    def alter_group_offsets(self, group_id: str, offsets: ByPartition[int | CommittedOffset]) -> None:
        return self._call(self._async.alter_group_offsets(group_id, offsets))

    def delete_group_offsets(self, group_id: str, partitions: Iterable[PartitionLike]) -> None:
        return self._call(self._async.delete_group_offsets(group_id, partitions))

    def delete_groups(self, group_ids: Sequence[str]) -> None:
        return self._call(self._async.delete_groups(group_ids))

    def remove_members(
        self,
        group_id: str,
        *,
        member_ids: Sequence[str] = (),
        instance_ids: Sequence[str] = (),
        reason: str = "removed by an administrator",
    ) -> None:
        return self._call(
            self._async.remove_members(group_id, member_ids=member_ids, instance_ids=instance_ids, reason=reason)
        )


def commit_request(group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]) -> OffsetCommitRequest:
    """A commit from outside the group: no member, no generation."""
    topics = []
    for name, indexes in by_topic(offsets).items():
        partitions = []
        for index in indexes:
            given = offsets[TopicPartition(name, index)]
            committed = CommittedOffset(given) if isinstance(given, int) else given
            partitions.append(
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        topics.append(OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=partitions))
    return OffsetCommitRequest(group_id=group_id, generation_id_or_member_epoch=-1, member_id="", topics=topics)


def fixed(message: Any) -> Request:
    """A request that is the same in every version."""
    return lambda version: message


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """
    >>> by_topic([TopicPartition("b", 1), TopicPartition("a", 0), TopicPartition("b", 0)])
    {'a': [0], 'b': [0, 1]}
    """
    topics: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return topics


def group_by_node(coordinators: Mapping[str, Node]) -> dict[int, list[str]]:
    by_node: dict[int, list[str]] = defaultdict(list)
    for group_id, node in coordinators.items():
        by_node[node.node_id].append(group_id)
    return by_node


def failed(error_code: int, doing: str, message: str | None = None) -> KafkaError:
    return KafkaError(error_of(error_code), f"{doing}: {message}" if message else doing)


def raise_for(error_code: int, doing: str, message: str | None = None) -> None:
    if error_code != ErrorCode.NONE:
        raise failed(error_code, doing, message)
