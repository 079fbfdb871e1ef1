"""`ottla group reset-offsets`: changes a group's committed offsets. Without --execute it only shows the changes."""

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import typer
from rich.text import Text

from ottla.checks import unsigned_from_text
from ottla.cli.group.lag import find_offsets
from ottla.cli.group.offset_files import read_offsets, write_offsets
from ottla.cli.group.text import refuse_members
from ottla.cli.output import CommandError, console, plural, print_json, print_table
from ottla.cli.session import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    check_partitions,
    find_topics,
    open_admin,
    parse_time,
)
from ottla.client.admin.group_model import GroupDescription
from ottla.client.blocking import Admin
from ottla.client.core.model import EARLIEST, LATEST, CommittedOffset
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.types import INT32_MAX, TopicPartition


class Target(NamedTuple):
    """The target position. `kind` is earliest, latest, time, shift, offset, file or current."""

    kind: str
    value: int = 0
    offsets: dict[TopicPartition, int] | None = None


class Move(NamedTuple):
    """The change of one partition. `after` is None if it is unchanged."""

    partition: TopicPartition
    before: int | None
    after: int | None
    note: str = ""


def reset_offsets(
    group_id: Annotated[str, typer.Argument(metavar="GROUP", help="The group's id. The group must have no members.")],
    to_earliest: Annotated[bool, typer.Option("--to-earliest", metavar="", help="Reset to the earliest offset.")] = (
        False
    ),
    to_latest: Annotated[
        bool, typer.Option("--to-latest", metavar="", help="Reset to the end: skip all existing records.")
    ] = False,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="TIME",
            help="Reset to the first record at or after 2026-01-31T12:00 (local, or with +01:00) or milliseconds.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Move by N offsets; backwards with -N.")
    ] = None,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", min=0, help="Reset to offset N.")] = None,
    from_file: Annotated[
        str | None,
        typer.Option(
            "--from-file", metavar="FILE", help="Reset to the offsets in a file: topic,partition,offset lines, or JSON."
        ),
    ] = None,
    topics: Annotated[
        list[str],
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:P,P…]", help="Only this topic, or these partitions of it; repeatable."
        ),
    ] = [],  # noqa: B006
    export: Annotated[
        str | None,
        typer.Option(
            "--export",
            metavar="FILE",
            help="Write the new offsets to a file (.csv or .json), for use with --from-file.",
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", metavar="", help="Apply the changes. Without it they are only shown.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Reset a group's committed offsets. Shows the changes; --execute applies them.

    Without --topic, all committed offsets of the group are reset.
    Offsets out of range are set to the nearest valid offset.
    --export alone saves the current offsets and changes nothing.

    \b
    Examples:
      ottla group reset-offsets billing --to-earliest
      ottla group reset-offsets billing --to-time 2026-01-31T12:00 --execute
      ottla group reset-offsets billing --shift-by -100 --topic orders:0,2
      ottla group reset-offsets billing --export before.csv
      ottla group reset-offsets billing --from-file before.csv --execute
    """
    if not group_id:
        raise OttlaError("the group id is empty", "list the groups with: ottla group list")
    target = choose_target(to_earliest, to_latest, to_time, shift_by, to_offset, from_file, export)
    wanted = [parse_topic(text) for text in topics]
    with open_admin(bootstrap) as admin:
        group = describe_if_exists(admin, group_id)
        if group is not None and execute:
            refuse_members(group, "its offsets cannot be reset while it has members")
        committed = admin.list_group_offsets(group_id)
        partitions = choose_partitions(admin, group_id, committed, wanted, target)
        moves = plan(admin, committed, partitions, target)
        if export is not None:
            write_offsets(export, {move.partition: move.after for move in moves if move.after is not None})
        if execute:
            commit(admin, group_id, moves)
    _report(group_id, group, moves, execute, export, target.kind, as_json)


# Options


def choose_target(
    to_earliest: bool,
    to_latest: bool,
    to_time: str | None,
    shift_by: int | None,
    to_offset: int | None,
    from_file: str | None,
    export: str | None,
) -> Target:
    asked: list[tuple[str, Callable[[], Target]]] = []
    if to_earliest:
        asked.append(("--to-earliest", lambda: Target("earliest")))
    if to_latest:
        asked.append(("--to-latest", lambda: Target("latest")))
    if to_time is not None:
        asked.append(("--to-time", lambda: Target("time", _time_of(to_time))))
    if shift_by is not None:
        asked.append(("--shift-by", lambda: Target("shift", shift_by)))
    if to_offset is not None:
        asked.append(("--to-offset", lambda: Target("offset", to_offset)))
    if from_file is not None:
        asked.append(("--from-file", lambda: Target("file", offsets=read_offsets(from_file))))
    if len(asked) > 1:
        raise OttlaError(f"{' and '.join(name for name, _ in asked)} cannot be combined", "use only one of them")
    if not asked:
        if export is None:
            raise OttlaError(
                "no target position",
                "pass one of --to-earliest, --to-latest, --to-time, --shift-by, --to-offset, --from-file",
            )
        return Target("current")
    return asked[0][1]()


def _time_of(text: str) -> int:
    try:
        return parse_time(text)
    except ValueError:
        raise OttlaError(
            f"--to-time {text} is not a valid time", "write 2026-01-31T12:00, or milliseconds since 1970"
        ) from None


def parse_topic(text: str) -> tuple[str, list[int]]:
    """
    >>> parse_topic("orders:0,2"), parse_topic("orders")
    (('orders', [0, 2]), ('orders', []))
    """
    name, colon, listed = text.partition(":")
    if not colon:
        return name, []
    partitions: set[int] = set()
    for part in listed.split(","):
        partition = unsigned_from_text(part.strip())
        if not name or partition is None or partition > INT32_MAX:
            raise OttlaError(
                f"--topic {text} is not valid", f"write TOPIC or TOPIC:0,2, with partitions from 0 to {INT32_MAX}"
            )
        partitions.add(partition)
    return name, sorted(partitions)


def describe_if_exists(admin: Admin, group_id: str) -> GroupDescription | None:
    try:
        return admin.describe_groups([group_id])[0]
    except KafkaError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return None


def choose_partitions(
    admin: Admin,
    group_id: str,
    committed: dict[TopicPartition, CommittedOffset],
    wanted: Sequence[tuple[str, list[int]]],
    target: Target,
) -> list[TopicPartition]:
    """The partitions to reset: those of --topic, else those in the file, else all with a committed offset."""
    if wanted:
        descriptions = find_topics(admin, [name for name, _ in wanted])
        chosen = set()
        for topic, (_, indexes) in zip(descriptions, wanted, strict=True):
            check_partitions(topic, indexes)
            chosen |= {TopicPartition(topic.name, i) for i in indexes or range(len(topic.partitions))}
        if target.offsets is not None:
            chosen &= target.offsets.keys()
        return sorted(chosen)
    if target.offsets is not None:
        return sorted(target.offsets)
    if not committed:
        raise CommandError(f"group {group_id} has no committed offsets", "pass the topics with --topic")
    return sorted(committed)


# Changes


def plan(
    admin: Admin,
    committed: dict[TopicPartition, CommittedOffset],
    partitions: Sequence[TopicPartition],
    target: Target,
) -> list[Move]:
    """Each partition's offset before and after, limited to the partition's valid range."""
    firsts, ends = find_offsets(admin, partitions, EARLIEST), find_offsets(admin, partitions, LATEST)
    there = [partition for partition in partitions if partition in firsts and partition in ends]
    by_time = find_offsets(admin, there, target.value) if target.kind == "time" else {}
    moves = []
    for partition in partitions:
        held = committed.get(partition)
        before = held.offset if held is not None else None
        if partition not in firsts or partition not in ends:
            moves.append(Move(partition, before, None, "the partition does not exist"))
            continue
        first, end = firsts[partition], ends[partition]
        note = ""
        if target.kind == "earliest":
            after = first
        elif target.kind == "latest":
            after = end
        elif target.kind == "time":
            after = by_time.get(partition, end)
            note = "" if partition in by_time else "no record at or after that time: reset to the end"
        elif target.kind == "offset":
            after = target.value
        elif target.kind == "file":
            assert target.offsets is not None
            after = target.offsets[partition]
        elif before is None:
            moves.append(Move(partition, None, None, "no committed offset to shift"))
            continue
        else:
            after = before + target.value
        if target.kind != "current" and not first <= after <= end:
            note = f"{after} is {'before the first offset' if after < first else 'beyond the end'}"
            after = min(max(after, first), end)
        moves.append(Move(partition, before, after, note))
    return moves


def commit(admin: Admin, group_id: str, moves: Sequence[Move]) -> None:
    offsets = {move.partition: move.after for move in moves if move.after is not None and move.after != move.before}
    try:
        admin.alter_group_offsets(group_id, offsets)
    except KafkaError as error:
        if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS):
            raise CommandError(
                f"group {group_id} has new members: its offsets cannot be reset while it has members",
                "stop its consumers first",
            ) from None
        raise


# Output


def _report(
    group_id: str,
    group: GroupDescription | None,
    moves: Sequence[Move],
    executed: bool,
    export: str | None,
    kind: str,
    as_json: bool,
) -> None:
    changed = [move for move in moves if move.after is not None and move.after != move.before]
    members = len(group.members) if group is not None else 0
    if as_json:
        print_json(
            {
                "group": group_id,
                "executed": executed,
                "members": members,
                "exported_to": export,
                "partitions": [
                    {
                        "topic": move.partition.topic,
                        "partition": move.partition.partition,
                        "before": move.before,
                        "after": move.after,
                        "note": move.note or None,
                    }
                    for move in moves
                ],
            }
        )
        return
    if kind == "current":
        offsets = [[move.partition.topic, move.partition.partition, move.before] for move in moves]
        print_table(["topic", "partition", "offset"], offsets, right=["partition", "offset"])
    else:
        _print_moves(moves)
    out = console()
    if export is not None:
        out.print(f"wrote {plural(sum(move.after is not None for move in moves), 'offset')} to {export}")
    if kind == "current":
        return
    if executed:
        out.print(f"reset {plural(len(changed), 'partition')} of group {group_id}")
        return
    new = f" and create group {group_id}" if group is None else ""
    out.print(Text(f"dry run: add --execute to reset {plural(len(changed), 'partition')}{new}", style="bold"))
    if members:
        has = plural(members, "member")
        out.print(Text(f"group {group_id} has {has}: stop its consumers before you use --execute", style="yellow"))


def _print_moves(moves: Sequence[Move]) -> None:
    has_notes = any(move.note for move in moves)
    columns = ["topic", "partition", "before", "", "after", "change", *(["note"] if has_notes else [])]
    rows = [
        [move.partition.topic, move.partition.partition, move.before, "→", move.after, _step_text(move), move.note]
        for move in moves
    ]
    print_table(columns, [row[: len(columns)] for row in rows], right=["partition", "before", "after", "change"])


def _step_text(move: Move) -> str | None:
    if move.before is None or move.after is None:
        return None
    step = move.after - move.before
    return f"{step:+d}" if step else "0"
