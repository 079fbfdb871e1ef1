"""Admin calls about groups: list, describe, delete, remove members."""

from collections.abc import Iterable, Mapping, Sequence

from ottla.client.admin.all_coordinators import ask_all_coordinators
from ottla.client.admin.group_model import GroupDescription, GroupListing, classic_group, consumer_group
from ottla.client.admin.requests import ask, ask_coordinator, by_coordinator, coordinators_of, fixed, retrying
from ottla.client.core.arguments import as_names
from ottla.client.core.model import Node
from ottla.client.core.network import Network
from ottla.errors import ErrorCode, KafkaError, error_for, raise_for
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.types import OFFSETS_TOPIC


async def find_coordinators(network: Network, group_ids: Sequence[str]) -> dict[str, Node]:
    names = as_names(group_ids, "groups")
    return await retrying(network, lambda: coordinators_of(network, names))


async def list_groups(network: Network, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
    wanted_states, wanted_types = as_names(states, "states"), as_names(types, "types")

    def build(version: int) -> ListGroupsRequest:
        if (wanted_states and version < 4) or (wanted_types and version < 5):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker cannot filter groups")
        return ListGroupsRequest(states_filter=wanted_states, types_filter=wanted_types)

    async def of(node_id: int) -> list[GroupListing]:
        response = await ask(network, ApiKey.LIST_GROUPS, build, node_id)
        raise_for(response.error_code, f"listing the groups of broker {node_id}")
        return [
            GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type, node_id) for g in response.groups
        ]

    # A group whose coordinator moves meanwhile may be listed by both brokers.
    by_id = {group.group_id: group for group in await ask_all_coordinators(network, OFFSETS_TOPIC, of)}
    return [by_id[group_id] for group_id in sorted(by_id)]


async def describe_groups(network: Network, group_ids: Sequence[str]) -> list[GroupDescription]:
    group_ids = as_names(group_ids, "groups")
    found: dict[str, GroupDescription] = {}

    async def attempt() -> list[GroupDescription]:
        await _describe(network, [group_id for group_id in group_ids if group_id not in found], found)
        return [found[group_id] for group_id in group_ids]

    return await retrying(network, attempt)


async def delete_groups(network: Network, group_ids: Sequence[str]) -> None:
    group_ids = as_names(group_ids, "groups")
    done: set[str] = set()

    async def attempt() -> None:
        missing = [group_id for group_id in group_ids if group_id not in done]
        raised: KafkaError | None = None
        for node_id, part in by_coordinator(await coordinators_of(network, missing)).items():
            message = DeleteGroupsRequest(groups_names=part)
            response = await ask(network, ApiKey.DELETE_GROUPS, fixed(message), node_id)
            for result in response.results:
                if result.error_code == ErrorCode.NONE:
                    done.add(result.group_id)
                    continue
                error = error_for(result.error_code, f"deleting group {result.group_id}", result.error_message)
                raised = error if raised is None or not error.retriable else raised
        if raised is not None:
            raise raised

    await retrying(network, attempt)


async def remove_members(
    network: Network,
    group_id: str,
    *,
    member_ids: Sequence[str] = (),
    instance_ids: Sequence[str] = (),
    reason: str,
) -> None:
    chosen: list[tuple[str, str | None]] = [(member_id, None) for member_id in as_names(member_ids, "member_ids")]
    chosen += [("", instance_id) for instance_id in as_names(instance_ids, "instance_ids")]
    if not chosen:
        (group,) = await describe_groups(network, [group_id])
        chosen = [(member.member_id, member.group_instance_id) for member in group.members]
    if not chosen:
        return

    def build(version: int) -> LeaveGroupRequest:
        if version < 3:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker cannot remove members (KIP-345)")
        identity = LeaveGroupRequest.MemberIdentity
        members = [identity(member_id=m, group_instance_id=i, reason=reason) for m, i in chosen]
        return LeaveGroupRequest(group_id=group_id, members=members)

    async def attempt() -> None:
        response = await ask_coordinator(network, ApiKey.LEAVE_GROUP, build, group_id)
        raise_for(response.error_code, f"removing members of group {group_id}")
        for member in response.members:
            name = member.group_instance_id or member.member_id
            raise_for(member.error_code, f"removing member {name} of group {group_id}")

    await retrying(network, attempt)


async def _describe(network: Network, group_ids: Sequence[str], found: dict[str, GroupDescription]) -> None:
    """Describes classic groups, then the remaining ones as groups of the new protocol (KIP-848). Adds to `found`."""
    coordinators = await coordinators_of(network, group_ids)
    for node_id, asked in by_coordinator(coordinators).items():
        message = DescribeGroupsRequest(groups=asked)
        response = await ask(network, ApiKey.DESCRIBE_GROUPS, fixed(message), node_id)
        others = []
        for group in response.groups:
            if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == "Dead":
                others.append(group.group_id)
                continue
            raise_for(group.error_code, f"describing group {group.group_id}", group.error_message)
            found[group.group_id] = classic_group(group, coordinators[group.group_id])
        if others:
            await _describe_new(network, others, coordinators, node_id, found)


async def _describe_new(
    network: Network,
    group_ids: list[str],
    coordinators: Mapping[str, Node],
    node_id: int,
    found: dict[str, GroupDescription],
) -> None:
    message = ConsumerGroupDescribeRequest(group_ids=group_ids)
    try:
        response = await ask(network, ApiKey.CONSUMER_GROUP_DESCRIBE, fixed(message), node_id)
    except KafkaError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_ids[0]} does not exist") from None
    for group in response.groups:
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group.group_id} does not exist")
        raise_for(group.error_code, f"describing group {group.group_id}", group.error_message)
        found[group.group_id] = consumer_group(group, coordinators[group.group_id])
