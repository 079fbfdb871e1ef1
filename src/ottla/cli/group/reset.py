"""`ottla group reset-offsets`: moves a group to other offsets. Shows what it would do, until told to do it."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, NamedTuple

import typer
from rich.text import Text

from ottla.cli.group.lag import find_offsets
from ottla.cli.group.offset_files import read_offsets, write_offsets
from ottla.cli.group.text import refuse_members
from ottla.cli.output import CommandError, console, plural, print_json, print_table
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, check_partitions, find_topics, open_admin
from ottla.client.admin.group_model import GroupDescription
from ottla.client.blocking import Admin
from ottla.client.core.model import EARLIEST, LATEST, CommittedOffset
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.types import TopicPartition


class Target(NamedTuple):
    """Where to go: `kind` is earliest, latest, time, shift, offset, file or current."""

    kind: str
    value: int = 0
    offsets: dict[TopicPartition, int] | None = None


class Move(NamedTuple):
    """What happens to one partition. `after` is None where it is left alone."""

    partition: TopicPartition
    before: int | None
    after: int | None
    note: str = ""


def reset_offsets(
    group_id: Annotated[str, typer.Argument(metavar="GROUP", help="Which group. It must have no members.")],
    to_earliest: Annotated[bool, typer.Option("--to-earliest", metavar="", help="To the first record still there.")] = (
        False
    ),
    to_latest: Annotated[bool, typer.Option("--to-latest", metavar="", help="To the end: skip what is there.")] = False,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time", metavar="TIME", help="To the first record of 2026-01-31T12:00 (local, or +01:00), or of MS."
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="N records forward, or back with -N.")
    ] = None,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", min=0, help="To offset N.")] = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from-file", metavar="FILE", help="To what a file says: topic,partition,offset lines, or JSON."),
    ] = None,
    topics: Annotated[
        list[str],
        typer.Option("--topic", "-t", metavar="TOPIC[:P,P…]", help="Only this one; may be given often."),
    ] = [],  # noqa: B006
    export: Annotated[
        str | None,
        typer.Option(
            "--export", metavar="FILE", help="Write the new offsets to a file (.csv or .json) for --from-file."
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", metavar="", help="Do it. Without this, only show it.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move a group to other offsets. Shows what would change; --execute changes it.

    Without --topic it is about everything the group has committed.
    Offsets outside a partition are moved to its nearest end.
    With --export alone, the present offsets are saved and nothing changes.

    \b
    Examples:
      ottla group reset-offsets billing --to-earliest
      ottla group reset-offsets billing --to-time 2026-01-31T12:00 --execute
      ottla group reset-offsets billing --shift-by -100 --topic orders:0,2
      ottla group reset-offsets billing --export before.csv
      ottla group reset-offsets billing --from-file before.csv --execute
    """
    if not group_id:
        raise OttlaError("the group id is empty", "ottla group list shows what there is")
    target = choose_target(to_earliest, to_latest, to_time, shift_by, to_offset, from_file, export)
    wanted = [parse_topic(text) for text in topics]
    with open_admin(bootstrap) as admin:
        group = describe_if_there(admin, group_id)
        if group is not None and execute:
            refuse_members(group, "its offsets cannot be moved while they run")
        committed = admin.list_group_offsets(group_id)
        partitions = choose_partitions(admin, group_id, committed, wanted, target)
        moves = plan(admin, committed, partitions, target)
        if export is not None:
            write_offsets(export, {move.partition: move.after for move in moves if move.after is not None})
        if execute:
            commit(admin, group_id, moves)
    _report(group_id, group, moves, execute, export, target.kind, as_json)


# What is asked


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
        asked.append(("--to-time", lambda: Target("time", parse_time(to_time))))
    if shift_by is not None:
        asked.append(("--shift-by", lambda: Target("shift", shift_by)))
    if to_offset is not None:
        asked.append(("--to-offset", lambda: Target("offset", to_offset)))
    if from_file is not None:
        asked.append(("--from-file", lambda: Target("file", offsets=read_offsets(from_file))))
    if len(asked) > 1:
        raise OttlaError(f"{' and '.join(name for name, _ in asked)} contradict each other", "give one of them")
    if not asked:
        if export is None:
            raise OttlaError(
                "where to is missing",
                "give one of --to-earliest, --to-latest, --to-time, --shift-by, --to-offset, --from-file",
            )
        return Target("current")
    return asked[0][1]()


def parse_time(text: str) -> int:
    """
    >>> parse_time("1700000000000"), parse_time("2023-11-14T22:13:20+00:00")
    (1700000000000, 1700000000000)
    """
    stripped = text.strip()
    if re.fullmatch(r"@?\d+", stripped):
        return int(stripped.removeprefix("@"))
    try:
        return int(datetime.fromisoformat(stripped).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise OttlaError(f"--to-time {text} is no time", "write 2026-01-31T12:00, or milliseconds since 1970") from None


def parse_topic(text: str) -> tuple[str, list[int]]:
    """
    >>> parse_topic("orders:0,2"), parse_topic("orders")
    (('orders', [0, 2]), ('orders', []))
    """
    name, colon, listed = text.partition(":")
    if not colon:
        return name, []
    try:
        return name, sorted({int(part) for part in listed.split(",")})
    except ValueError:
        raise OttlaError(f"--topic {text} is not understood", "write TOPIC or TOPIC:0,2") from None


def describe_if_there(admin: Admin, group_id: str) -> GroupDescription | None:
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
    """The partitions that the command is about: those named, or else those of the file, or else those committed."""
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
        raise CommandError(f"group {group_id} has committed nothing", "name what it should read with --topic")
    return sorted(committed)


# Where it leads


def plan(
    admin: Admin,
    committed: dict[TopicPartition, CommittedOffset],
    partitions: Sequence[TopicPartition],
    target: Target,
) -> list[Move]:
    """Each partition's offset before and after, kept within what the partition has."""
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
            note = "" if partition in by_time else "no record is that late: the end"
        elif target.kind == "offset":
            after = target.value
        elif target.kind == "file":
            assert target.offsets is not None
            after = target.offsets[partition]
        elif before is None:
            moves.append(Move(partition, None, None, "nothing committed, nothing to shift"))
            continue
        else:
            after = before + target.value
        if target.kind != "current" and not first <= after <= end:
            note = f"not {after}, which is {'before the first' if after < first else 'beyond the end'}"
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
                f"group {group_id} got members in the meantime: its offsets cannot be moved while they run",
                "stop its consumers first",
            ) from None
        raise


# Telling


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
        out.print(f"moved {plural(len(changed), 'partition')} of group {group_id}")
        return
    new = f"; --execute makes the group {group_id}, which does not exist yet" if group is None else ""
    out.print(
        Text(f"nothing was changed: add --execute to move {plural(len(changed), 'partition')}{new}", style="bold")
    )
    if members:
        has = plural(members, "member")
        out.print(Text(f"group {group_id} has {has} and would be refused: stop its consumers first", style="yellow"))


def _print_moves(moves: Sequence[Move]) -> None:
    has_notes = any(move.note for move in moves)
    columns = ["topic", "partition", "before", "", "after", "by", *(["note"] if has_notes else [])]
    rows = [
        [move.partition.topic, move.partition.partition, move.before, "→", move.after, _step_text(move), move.note]
        for move in moves
    ]
    print_table(columns, [row[: len(columns)] for row in rows], right=["partition", "before", "after", "by"])


def _step_text(move: Move) -> str | None:
    if move.before is None or move.after is None:
        return None
    step = move.after - move.before
    return f"{step:+d}" if step else "0"
