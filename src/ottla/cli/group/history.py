"""`ottla group history`: why a group rebalanced, read from the topic __ottla_rebalances."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from ottla.cli.group.text import GroupId, member_names, partitions_text
from ottla.cli.output import CommandError, console, duration, plural, print_json, time_text
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, open_admin, read_to_end
from ottla.errors import OttlaError
from ottla.types import REBALANCES_TOPIC, TopicPartition

_PHRASES = {
    "leader rejoined": "leader {who} rejoined",
    "static member came back": "static member {who} came back",
}
"""Causes whose text does not start with the member's name."""


def history(
    group_id: GroupId,
    last: Annotated[
        int, typer.Option("--last", "-n", metavar="N", min=1, help="Show only the last N rebalances.")
    ] = 20,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show a group's rebalances: time, cause, duration, and which partitions moved.

    Ottla brokers log rebalances as JSON to the topic __ottla_rebalances.

    \b
    Examples:
      ottla group history billing
      ottla group history billing --last 1
      ottla group history billing --json | jq '.[].causes'
    """
    if not group_id:
        raise OttlaError("the group id is empty", "list the groups with: ottla group list")
    with open_admin(bootstrap) as admin:
        known = [topic.name for topic in admin.list_topics(include_internal=True)]
        groups = [group.group_id for group in admin.list_groups()]
    if REBALANCES_TOPIC not in known:
        raise CommandError(
            f"{bootstrap} has no rebalance history",
            f"Ottla brokers write it to {REBALANCES_TOPIC} from the first rebalance on; other brokers do not",
        )
    events, others = read_history(bootstrap, group_id)
    if not events and group_id not in groups:
        kept = (
            f"groups with history: {', '.join(sorted(others)[:5])}"
            if others
            else "list the groups with: ottla group list"
        )
        raise CommandError(f"group {group_id} does not exist and has no history", kept)
    events = events[-last:]
    if as_json:
        print_json([event | {"changes": changes(event["before"], event["after"])} for event in events])
    elif not events:
        console().print(f"group {group_id} has no recorded rebalances", style="dim")
    else:
        for i, event in enumerate(events):
            if i:
                console().print()
            _print_event(event)


def read_history(bootstrap: str, group_id: str) -> tuple[list[dict[str, Any]], set[str]]:
    """The rebalances of a group, oldest first, and the other groups in the history."""
    events, others = [], set()
    for record in read_to_end(bootstrap, TopicPartition(REBALANCES_TOPIC, 0)):
        key = (record.key or b"").decode(errors="replace")
        if key != group_id:
            others.add(key)
        elif (event := read_event(record.value)) is not None:
            events.append(event)
    return events, others


def read_event(value: bytes | None) -> dict[str, Any] | None:
    """Parses one rebalance; None if the record was not written by a broker."""
    try:
        event = json.loads(value or b"")
    except ValueError:
        return None
    needed = ("generation", "started_ms", "duration_ms", "causes", "before", "after")
    return event if isinstance(event, dict) and all(name in event for name in needed) else None


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Who gained, lost and kept which partitions.

    >>> changes({"ann": {"t": [0, 1]}}, {"ann": {"t": [0]}, "bob": {"t": [1]}})[1]
    {'member': 'bob', 'was': 'new', 'gained': ['t-1'], 'lost': [], 'kept': []}
    """
    found = []
    for member in sorted({*before, *after}):
        had, has = _partitions(before.get(member)), _partitions(after.get(member))
        was = "gone" if member not in after else "new" if member not in before else "there"
        found.append(
            {
                "member": member,
                "was": was,
                "gained": [str(partition) for partition in sorted(has - had)],
                "lost": [str(partition) for partition in sorted(had - has)],
                "kept": [str(partition) for partition in sorted(had & has)],
            }
        )
    return found


def _partitions(assigned: Any) -> set[TopicPartition]:
    """For groups that are not consumer groups only the size of an assignment is recorded: returns an empty set."""
    if not isinstance(assigned, dict):
        return set()
    return {TopicPartition(topic, index) for topic, indexes in assigned.items() for index in indexes}


def _print_event(event: dict[str, Any]) -> None:
    before, after = event["before"], event["after"]
    names = member_names(dict.fromkeys([*before, *after, *(cause["member"] for cause in event["causes"])]))
    out = console()
    heading = Text.assemble((f"generation {event['generation']}", "bold"), f"  {time_text(event['started_ms'])}")
    took = f"took {duration(event['duration_ms'] / 1000)}"
    size = plural(len(after), "member") if after else "no members left"
    protocol = f", {event['protocol']}" if event.get("protocol") else ""
    heading.append(f"  {took}, {size}{protocol}", style="dim")
    out.print(heading)
    for cause in event["causes"]:
        out.print(Text("  because ", style="dim"), Text(cause_text(cause, names)), sep="")
    width = max((len(names[member]) for member in {*before, *after}), default=0)
    for member in sorted({*before, *after}, key=lambda member: (member not in after, names[member])):
        out.print("  ", Text(names[member].ljust(width)), "  ", _change_text(member, before, after), sep="")


def cause_text(cause: Mapping[str, Any], names: Mapping[str, str]) -> str:
    who, what = names.get(cause["member"], cause["member"]), cause["what"]
    if what in _PHRASES and who:
        said = _PHRASES[what].format(who=who)
    else:
        said = f"{who} {what}" if who else what
    return f"{said} ({cause['reason']})" if cause.get("reason") else said


def _change_text(member: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Text:
    had, has = _partitions(before.get(member)), _partitions(after.get(member))
    text = Text()
    if kept := had & has:
        text.append(f"= {partitions_text(sorted(kept))}", style="dim")
    if gained := has - had:
        text.append("  " if text else "").append(f"+ {partitions_text(sorted(gained))}", style="green")
    if lost := had - has:
        text.append("  " if text else "").append(f"- {partitions_text(sorted(lost))}", style="red")
    if not text:
        odd = after.get(member)
        text.append(odd if isinstance(odd, str) else "nothing", style="dim")
    if member not in after:
        text.append("  gone", style="dim")
    elif member not in before:
        text.append("  new", style="dim")
    return text
