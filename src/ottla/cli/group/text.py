"""Shared by the group commands: group lookup, and short texts for members and partitions."""

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.text import Text

from ottla.cli.output import CommandError, plural
from ottla.client.admin.group_model import GroupDescription, GroupMember
from ottla.client.blocking import Admin
from ottla.errors import ErrorCode, KafkaError, OttlaError, did_you_mean
from ottla.types import TopicPartition, partitions_by_topic

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]
UUID_LENGTH = 36


def find_group(admin: Admin, group_id: str) -> GroupDescription:
    """Describes a group. A missing group is an error that suggests a similar name."""
    if not group_id:
        raise OttlaError("the group id is empty", "list the groups with: ottla group list")
    try:
        (group,) = admin.describe_groups([group_id])
        return group
    except KafkaError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
    known = [listed.group_id for listed in admin.list_groups()]
    hint = did_you_mean(group_id, known, "list the groups with: ottla group list")
    raise CommandError(f"group {group_id} does not exist", hint)


def refuse_members(group: GroupDescription, consequence: str) -> None:
    """Raises if the group has members, and names them."""
    if group.members:
        names = sorted({member.client_id or member.member_id for member in group.members})
        shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        has = plural(len(group.members), "member")
        raise CommandError(f"group {group.group_id} has {has} ({shown}): {consequence}", "stop its consumers first")


def state_text(state: str) -> Text | None:
    colours = {"Stable": "green", "Empty": "dim", "Dead": "red"}
    return Text(state, style=colours.get(state, "yellow")) if state else None


def member_names(members: Iterable[GroupMember | str]) -> dict[str, str]:
    """A short name for each member id: a member id is a name and a UUID, of which the first eight digits suffice.

    >>> member_names(["ann-6ba7b810-9dad-11d1-80b4-00c04fd430c8", "bob"])
    {'ann-6ba7b810-9dad-11d1-80b4-00c04fd430c8': 'ann-6ba7b810', 'bob': 'bob'}
    """
    ids = [member if isinstance(member, str) else member.member_id for member in members]
    short = {member_id: _short(member_id) for member_id in ids}
    taken = list(short.values())
    return {member_id: name if taken.count(name) == 1 else member_id for member_id, name in short.items()}


def _short(member_id: str) -> str:
    name, uuid = member_id[:-UUID_LENGTH], member_id[-UUID_LENGTH:]
    is_uuid = name.endswith("-") and [len(part) for part in uuid.split("-")] == [8, 4, 4, 4, 12]
    return name + uuid[:8] if is_uuid else member_id


def partitions_text(partitions: Sequence[TopicPartition]) -> str:
    """
    >>> partitions_text([TopicPartition(*place) for place in (("a", 0), ("a", 1), ("a", 3), ("b", 7))])
    'a: 0-1, 3; b: 7'
    """
    by_topic = partitions_by_topic(sorted(partitions))
    return "; ".join(f"{topic}: {_ranges(indexes)}" for topic, indexes in by_topic.items()) or "-"


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
