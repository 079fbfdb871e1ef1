"""`ottla group`: the app with all subcommands; list, members and delete live here."""

from typing import Annotated, Any

import typer

from ottla.cli.group.describe import describe
from ottla.cli.group.history import history
from ottla.cli.group.plan import plan
from ottla.cli.group.reset import reset_offsets
from ottla.cli.group.text import GroupId, find_group, partitions_text, refuse_members, state_text
from ottla.cli.output import console, plural, print_json, print_table
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes, check_known, confirm, open_admin
from ottla.client.admin.group_model import GroupMember
from ottla.types import partitions_by_topic

app = typer.Typer(help="Inspect consumer groups, their lag and rebalances; reset their offsets.", no_args_is_help=True)

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Assigning", "Reconciling")
TYPES = ("classic", "consumer", "share", "streams")


@app.command("list")
def list_groups(
    states: Annotated[
        list[str],
        typer.Option(
            "--state", metavar="STATE", help="Only groups in this state, for example Stable or Empty; repeatable."
        ),
    ] = [],  # noqa: B006
    types: Annotated[
        list[str],
        typer.Option("--type", metavar="TYPE", help="Only groups of this type, for example classic; repeatable."),
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List groups with their state and coordinator.

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
        like = " match" if states or types else " yet (a consumer with a group.id creates one)"
        console().print(f"no groups{like}", style="dim")
    else:
        print_table(
            ["group", "state", "type", "coordinator"],
            [[g.group_id, state_text(g.state), g.group_type or None, g.coordinator_id] for g in groups],
            right=["coordinator"],
        )


@app.command()
def members(
    group_id: GroupId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the members of a group, their hosts and their assigned partitions.

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
        console().print(f"group {group_id} has no members (state {group.state})", style="dim")
        return
    if group.state != "Stable":
        console().print(
            f"group {group_id} is rebalancing ({group.state}): assignments are about to change", style="yellow"
        )
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
    return {
        "member": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "topics": list(subscription.topics) if subscription is not None else None,
        "rack": subscription.rack if subscription is not None else None,
        "assignment": partitions_by_topic(member.assignment),
    }


app.command("describe")(describe)
app.command("history")(history)
app.command("plan")(plan)
app.command("reset-offsets")(reset_offsets)


@app.command()
def delete(
    group_ids: Annotated[list[str], typer.Argument(metavar="GROUP", help="Group ids.")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete groups and their committed offsets. Groups with members cannot be deleted.

    Asks for confirmation on a terminal.

    \b
    Examples:
      ottla group delete billing
      ottla group delete test-1 test-2 --yes
    """
    with open_admin(bootstrap) as admin:
        for group_id in group_ids:
            group = find_group(admin, group_id)
            refuse_members(group, "cannot be deleted while it has members")

        def show() -> None:
            for group_id in group_ids:
                console().print(f"{group_id}: {plural(len(admin.list_group_offsets(group_id)), 'committed offset')}")

        confirm("Delete permanently?", yes, show)
        admin.delete_groups(group_ids)
    if as_json:
        print_json({"deleted": list(group_ids)})
    else:
        console().print(f"deleted {', '.join(group_ids)}")
