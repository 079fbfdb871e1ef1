"""`ottla group`: list, describe and delete groups, and see who is in them."""

import difflib
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.text import Text

from ottla.cli.group_history import history
from ottla.cli.group_lag import Lag, measure
from ottla.cli.group_plan import plan
from ottla.cli.group_reset import reset_offsets
from ottla.cli.group_text import duration, find_group, member_names, partitions_text, refuse_members, state_text
from ottla.cli.output import console, count, plural, print_facts, print_json, print_table
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, open_admin
from ottla.client.admin.group_model import CommittedOffset, GroupDescription, GroupMember
from ottla.clock import system_clock
from ottla.errors import OttlaError
from ottla.types import TopicPartition

app = typer.Typer(
    help="See consumer groups, their lag and why they rebalanced; move their offsets.", no_args_is_help=True
)

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="Which group.")]

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Assigning", "Reconciling")
TYPES = ("classic", "consumer", "share", "streams")


@app.command("list")
def list_groups(
    states: Annotated[
        list[str], typer.Option("--state", metavar="STATE", help="Only groups in this state, as Stable or Empty.")
    ] = [],  # noqa: B006
    types: Annotated[
        list[str], typer.Option("--type", metavar="TYPE", help="Only groups of this type, as classic or consumer.")
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the groups.

    \b
    Examples:
      ottla group list
      ottla group list --state stable
      ottla group list --json | jq -r '.[].group'
    """
    check_known("--state", states, STATES)
    check_known("--type", types, TYPES)
    with open_admin(bootstrap) as admin:
        groups = admin.list_groups(states=states, types=types)
    if as_json:
        print_json(
            [
                {
                    "group": group.group_id,
                    "state": group.state or None,
                    "type": group.group_type or None,
                    "protocol_type": group.protocol_type or None,
                    "coordinator": group.coordinator_id,
                }
                for group in groups
            ]
        )
    elif not groups:
        like = " like that" if states or types else " yet (a consumer with a group.id makes one)"
        console().print(f"no groups{like}", style="dim")
    else:
        print_table(
            ["group", "state", "type", "coordinator"],
            [[g.group_id, state_text(g.state), g.group_type or None, g.coordinator_id] for g in groups],
            right=["coordinator"],
        )


@app.command()
def describe(
    group_id: GroupId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show where a group is: per partition its committed offset, its lag in records and in time, and who reads it.

    The lag is what a read_committed reader would still get: no transaction
    markers, no aborted records. Up to 10,000 offsets a partition are read and
    counted; larger gaps are told by offsets, marked with ~.

    \b
    Examples:
      ottla group describe billing
      ottla group describe billing --json | jq '[.partitions[].lag] | add'
    """
    with open_admin(bootstrap) as admin:
        group = find_group(admin, group_id)
        owners = group.owners
        committed: dict[TopicPartition, CommittedOffset | None] = dict.fromkeys(owners)
        committed.update(admin.list_group_offsets(group_id))
        lags = measure(admin, bootstrap, committed, system_clock())
    described = {
        "group": group.group_id,
        "state": group.state,
        "type": group.group_type,
        "protocol_type": group.protocol_type or None,
        "protocol": group.protocol or None,
        "coordinator": {
            "id": group.coordinator.node_id,
            "host": group.coordinator.host,
            "port": group.coordinator.port,
        },
        "members": len(group.members),
        "partitions": [
            partition_json(partition, committed[partition], lags[partition], owners.get(partition))
            for partition in sorted(committed)
        ],
    }
    if as_json:
        print_json(described)
    else:
        _print_description(group, described)


def partition_json(
    partition: TopicPartition, committed: CommittedOffset | None, lag: Lag, owner: GroupMember | None
) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "committed_offset": committed.offset if committed is not None else None,
        "end_offset": lag.end_offset,
        "last_stable_offset": lag.last_stable_offset,
        "lag": lag.records,
        "lag_is_exact": lag.is_exact,
        "lag_seconds": None if lag.behind_ms is None else lag.behind_ms / 1000,
        "member": owner.member_id if owner is not None else None,
        "group_instance_id": owner.group_instance_id if owner is not None else None,
        "client_id": owner.client_id if owner is not None else None,
        "host": owner.host if owner is not None else None,
        "leader_epoch": committed.leader_epoch if committed is not None else None,
        "metadata": committed.metadata if committed is not None else None,
        "notes": list(lag.notes),
        "open_transactions": [
            {
                "transactional_id": transaction.transactional_id,
                "producer_id": transaction.producer_id,
                "first_offset": transaction.first_offset,
                "last_timestamp": transaction.last_timestamp,
            }
            for transaction in lag.open_transactions
        ],
    }


def _print_description(group: GroupDescription, described: dict[str, Any]) -> None:
    rows = described["partitions"]
    at = group.coordinator
    print_facts(
        {
            "group": group.group_id,
            "state": group.state,
            "type": group.group_type,
            "assignor": group.protocol or None,
            "coordinator": f"broker {at.node_id} ({at.host}:{at.port})",
            "members": len(group.members),
            "lag": _total_lag(rows),
        }
    )
    if not rows:
        console().print("no offsets committed and no partitions assigned", style="dim")
        return
    console().print()
    names = member_names(group.members)
    has_metadata = any(row["metadata"] for row in rows)
    has_static = any(row["group_instance_id"] for row in rows)
    columns = ["topic", "partition", "committed", "end", "lag", "behind", "member", "host"]
    columns += (["instance"] if has_static else []) + (["metadata"] if has_metadata else [])
    table = []
    for row in rows:
        cells = [row["topic"], row["partition"], row["committed_offset"], row["end_offset"], _lag_text(row)]
        cells += [_behind_text(row), names.get(row["member"]), row["host"]]
        cells += ([row["group_instance_id"]] if has_static else []) + ([row["metadata"]] if has_metadata else [])
        table.append(cells)
    print_table(columns, table, right=["partition", "committed", "end", "lag", "behind"])
    _print_notes(rows)


def _print_notes(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        place = f"{row['topic']}-{row['partition']}"
        for note in row["notes"]:
            console().print(Text(f"{place}: {note}", style="yellow"))
        end, stable = row["end_offset"], row["last_stable_offset"]
        if end is None or stable is None or stable >= end:
            continue
        held = f"{place}: readers of committed data stop at {stable}, {plural(end - stable, 'offset')} before the end"
        if row["open_transactions"]:
            first = row["open_transactions"][0]
            who = first["transactional_id"]
            named = f"transaction of {who}" if who is not None else f"transaction of producer {first['producer_id']}"
            held += f": the {named} is open since offset {first['first_offset']}"
        console().print(Text(held, style="yellow"))


def _total_lag(rows: list[dict[str, Any]]) -> str:
    known = [row for row in rows if row["lag"] is not None]
    if not known:
        return "unknown" if rows else "-"
    total = sum(row["lag"] for row in known)
    about = "" if all(row["lag_is_exact"] for row in known) else "about "
    behind = max((row["lag_seconds"] or 0 for row in known), default=0)
    time = f", {duration(behind)} behind" if behind else ""
    unknown = len(rows) - len(known)
    without = f" (without {plural(unknown, 'partition')})" if unknown else ""
    return f"{about}{plural(total, 'record')}{time}{without}"


def _lag_text(row: dict[str, Any]) -> Text | None:
    if row["lag"] is None:
        return None
    text = count(row["lag"]) if row["lag_is_exact"] else f"~{count(row['lag'])}"
    return Text(text, style="green" if row["lag"] == 0 else "")


def _behind_text(row: dict[str, Any]) -> str | None:
    if row["lag_seconds"] is None:
        return None
    return "-" if row["lag"] == 0 else duration(row["lag_seconds"])


@app.command()
def members(
    group_id: GroupId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show who is in a group, from where, and which partitions each has.

    \b
    Examples:
      ottla group members billing
      ottla group members billing --json | jq '.[].assignment'
    """
    with open_admin(bootstrap) as admin:
        group = find_group(admin, group_id)
    if as_json:
        print_json([member_json(member) for member in group.members])
        return
    if not group.members:
        console().print(f"group {group_id} is {group.state} and has no members", style="dim")
        return
    if group.state != "Stable":
        console().print(f"group {group_id} is {state_text(group.state)}: who has what is being settled", style="yellow")
    has_static = any(member.is_static for member in group.members)
    columns = ["member", *(["instance"] if has_static else []), "client", "host", "partitions", "assignment"]
    rows = []
    for member in group.members:
        static = [member.group_instance_id] if has_static else []
        assigned = partitions_text(member.assignment)
        rows.append([member.member_id, *static, member.client_id, member.host, len(member.assignment), assigned])
    print_table(columns, rows, right=["partitions"])


def member_json(member: GroupMember) -> dict[str, Any]:
    subscription = member.subscription
    by_topic: dict[str, list[int]] = {}
    for partition in member.assignment:
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    return {
        "member": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "topics": list(subscription.topics) if subscription is not None else None,
        "rack": subscription.rack if subscription is not None else None,
        "assignment": by_topic,
    }


app.command("history")(history)
app.command("plan")(plan)
app.command("reset-offsets")(reset_offsets)


@app.command()
def delete(
    group_ids: Annotated[list[str], typer.Argument(metavar="GROUP…", help="Which groups.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", metavar="", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete groups and their committed offsets. They must have no members. Asks first on a terminal.

    \b
    Examples:
      ottla group delete billing
      ottla group delete test-1 test-2 --yes
    """
    with open_admin(bootstrap) as admin:
        for group_id in group_ids:
            group = find_group(admin, group_id)
            refuse_members(group, "it cannot be deleted while they run")
        if not yes and sys.stdin.isatty() and sys.stdout.isatty():
            for group_id in group_ids:
                console().print(f"{group_id}: {plural(len(admin.list_group_offsets(group_id)), 'committed offset')}")
            if not typer.confirm("Delete for good?"):
                raise typer.Exit(1)
        admin.delete_groups(group_ids)
    if as_json:
        print_json({"deleted": list(group_ids)})
    else:
        console().print(f"deleted {', '.join(group_ids)}")


# Shared


def check_known(option: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    lowered = [name.lower() for name in known]
    for name in given:
        if name.lower() not in lowered:
            close = difflib.get_close_matches(name.lower(), lowered, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise OttlaError(f"{option} {name} is not known", hint)
