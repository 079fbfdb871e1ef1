"""`ottla group plan`: previews the assignment of another assignor for a live group, without changing it."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.assignors import BUILT_IN, Assignment, ClusterMetadata, PartitionInfo, Subscription
from ottla.assignors.checking import run_assignor
from ottla.assignors.choosing import choose_assignors, left_over
from ottla.cli.group.text import GroupId, find_group, member_names, partitions_text
from ottla.cli.output import CommandError, console, plural, print_facts, print_json, print_table
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, open_admin
from ottla.client.admin.group_model import GroupDescription, GroupMember
from ottla.client.blocking import Admin
from ottla.errors import ErrorCode, KafkaError
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.client.core.model import TopicDescription


def plan(
    group_id: GroupId,
    assignor: Annotated[
        str,
        typer.Option("--assignor", metavar="NAME|MODULE:CLASS", help=f"{', '.join(BUILT_IN)}, or your own class."),
    ],
    leaving: Annotated[
        list[str],
        typer.Option(
            "--without", metavar="MEMBER", help="Plan as if this member (member id or client id) had left; repeatable."
        ),
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Preview the assignment of another assignor. Changes nothing.

    \b
    Examples:
      ottla group plan billing --assignor sticky
      ottla group plan billing --assignor mine:ByCustomer
      ottla group plan billing --assignor cooperative-sticky --without worker-3
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # MODULE:CLASS is looked up in the current directory
    (chosen,) = choose_assignors([assignor])
    with open_admin(bootstrap) as admin:
        group = find_group(admin, group_id)
        members = [member for member in group.members if not {member.member_id, member.client_id} & set(leaving)]
        subscriptions = subscriptions_of(group, members, chosen.name)
        topics = sorted({topic for subscription in subscriptions.values() for topic in subscription.topics})
        cluster = describe(admin, topics)
    shares = run_assignor(chosen, cluster, subscriptions)
    before = {member.member_id: list(member.assignment) for member in group.members}
    rest = left_over(cluster, subscriptions, shares)
    if as_json:
        print_json(plan_json(group, chosen.name, members, before, shares, rest))
    else:
        print_plan(group, chosen.name, members, before, shares, rest)


def subscriptions_of(group: GroupDescription, members: Sequence[GroupMember], assignor: str) -> dict[str, Subscription]:
    """The members' subscriptions, as input for an assignor."""
    # User data belongs to the assignor in use: another assignor cannot read it, and the built-in ones ignore it.
    has_user_data = assignor == group.protocol and assignor not in BUILT_IN
    if not members:
        raise CommandError(f"group {group.group_id} has no members", "start its consumers first")
    subscriptions = {}
    for member in members:
        subscription = member.subscription
        if subscription is None:
            raise CommandError(
                f"the subscriptions of group {group.group_id} are unknown while it is {group.state}",
                "try again when the group is Stable",
            )
        subscriptions[member.member_id] = Subscription(
            topics=list(subscription.topics),
            user_data=subscription.user_data if has_user_data else None,
            # The current assignment, not the one sent with the last JoinGroup.
            owned_partitions=list(member.assignment),
            generation_id=0,
            rack_id=subscription.rack,
            group_instance_id=member.group_instance_id,
        )
    return subscriptions


def describe(admin: Admin, topics: Sequence[str]) -> ClusterMetadata:
    """Partitions and racks of the topics; topics that do not exist are left out."""
    found: list[TopicDescription] = []
    for topic in topics:
        try:
            found += admin.describe_topics([topic])
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
    racks = {node.node_id: node.rack for node in admin.describe_cluster().brokers if node.rack}
    return ClusterMetadata(
        PartitionInfo(
            topic.name,
            partition.partition,
            frozenset(racks[node_id] for node_id in partition.replicas if node_id in racks),
            racks.get(partition.leader),
        )
        for topic in found
        for partition in topic.partitions
    )


def moves(
    before: Mapping[str, list[TopicPartition]], shares: Mapping[str, Assignment]
) -> dict[str, tuple[list[TopicPartition], list[TopicPartition]]]:
    """By member: (partitions it would gain, partitions it would lose)."""
    changed = {}
    for member in {**before, **shares}:
        had = set(before.get(member, ()))
        gets = set(shares[member].partitions) if member in shares else set()
        changed[member] = (sorted(gets - had), sorted(had - gets))
    return changed


def plan_json(
    group: GroupDescription,
    assignor: str,
    members: Sequence[GroupMember],
    before: Mapping[str, list[TopicPartition]],
    shares: Mapping[str, Assignment],
    rest: Sequence[TopicPartition],
) -> dict[str, Any]:
    changed = moves(before, shares)
    return {
        "group": group.group_id,
        "assignor": assignor,
        "assignor_now": group.protocol or None,
        "moved": sum(len(gets) for gets, _ in changed.values()),
        "unassigned": _places(rest),
        "members": [
            {
                "member": member.member_id,
                "client_id": member.client_id,
                "partitions": _places(sorted(shares[member.member_id].partitions)),
                "gets": _places(changed[member.member_id][0]),
                "gives_up": _places(changed[member.member_id][1]),
            }
            for member in members
        ],
    }


def print_plan(
    group: GroupDescription,
    assignor: str,
    members: Sequence[GroupMember],
    before: Mapping[str, list[TopicPartition]],
    shares: Mapping[str, Assignment],
    rest: Sequence[TopicPartition],
) -> None:
    changed = moves(before, shares)
    names = member_names(members)
    moved = sum(len(gets) for gets, _ in changed.values())
    total = sum(len(share.partitions) for share in shares.values())
    facts = {
        "group": group.group_id,
        "current assignor": group.protocol or None,
        "planned assignor": assignor,
        "moves": f"{moved} of {plural(total, 'partition')}",
    }
    if rest:
        facts["unassigned"] = partitions_text(rest)
    print_facts(facts)
    print_table(
        ["member", "partitions", "gains", "loses"],
        [
            [
                names[member.member_id],
                partitions_text(shares[member.member_id].partitions),
                partitions_text(changed[member.member_id][0]),
                partitions_text(changed[member.member_id][1]),
            ]
            for member in members
        ],
    )
    if rest and assignor == "cooperative-sticky":
        console().print("unassigned partitions are assigned by a second rebalance, right after the first", style="dim")


def _places(partitions: Sequence[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": partition.topic, "partition": partition.partition} for partition in partitions]
