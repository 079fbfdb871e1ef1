"""`ottla group describe`: committed offsets, lag and owner of each partition."""

from typing import Any

from rich.text import Text

from ottla.cli.group.lag import Lag, measure
from ottla.cli.group.text import GroupId, find_group, member_names
from ottla.cli.output import console, count, duration, plural, print_facts, print_json, print_table
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, open_admin
from ottla.client.admin.group_model import GroupDescription, GroupMember
from ottla.client.core.model import CommittedOffset
from ottla.clock import system_clock
from ottla.types import TopicPartition


def describe(
    group_id: GroupId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show a group's committed offsets, lag and members, by partition.

    Lag counts the records that a read_committed consumer would still receive:
    no transaction markers, no aborted records. Up to 10,000 offsets per
    partition are read and counted; larger lags are offset differences,
    marked with ~.

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
        held = f"{place}: read_committed consumers stop at {stable}, {plural(end - stable, 'offset')} before the end"
        if row["open_transactions"]:
            first = row["open_transactions"][0]
            who = first["transactional_id"]
            named = f"transaction of {who}" if who is not None else f"transaction of producer {first['producer_id']}"
            held += f": the {named} has been open since offset {first['first_offset']}"
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
    without = f" (unknown for {plural(unknown, 'partition')})" if unknown else ""
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
