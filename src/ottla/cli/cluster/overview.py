"""`ottla cluster`: the brokers, the controller, and partitions that are offline or not fully replicated."""

from typing import Annotated, Any

import typer
from rich.text import Text

from ottla.cli.cluster.state import ClusterState, read_state
from ottla.cli.output import console, count, print_facts, print_json, print_table, size
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, open_admin
from ottla.client.blocking import Admin
from ottla.types import TopicPartition

SHOWN = 20
"""The most partitions that the overview lists."""


def cluster(
    context: typer.Context,
    apis: Annotated[
        bool, typer.Option("--apis", metavar="", help="List the APIs and versions that a broker supports.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the brokers, the controller, and partitions that are offline or not fully replicated.

    \b
    Examples:
      ottla cluster
      ottla cluster --apis
      ottla cluster --bootstrap broker-1:9092,broker-2:9092 --json
      ottla cluster watch
      ottla cluster drain 2
    """
    if context.invoked_subcommand is not None:
        return
    with open_admin(bootstrap) as admin:
        if apis:
            _show_apis(admin, as_json)
            return
        state = read_state(admin)
    if as_json:
        print_json(document(state))
    else:
        print_state(state)


def document(state: ClusterState) -> dict[str, Any]:
    """The state as a JSON document."""
    description = state.description
    return {
        "cluster_id": description.cluster_id,
        "controller": description.controller_id,
        "controller_epoch": state.quorum.epoch if state.quorum is not None else None,
        "topics": sum(not topic.is_internal for topic in state.topics),
        "internal_topics": sum(topic.is_internal for topic in state.topics),
        "partitions": state.partition_count,
        "partitions_without_leader": len(state.offline),
        "partitions_out_of_sync": len(state.under_replicated),
        "brokers": brokers_of(state),
        "offline": [_partition_document(partition, p) for partition, p in state.offline],
        "under_replicated": [_partition_document(partition, p) for partition, p in state.under_replicated],
        "behind": [each.document() for each in state.behind()],
        "reassignments": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "replicas": list(moving.replicas),
                "adding": list(moving.adding_replicas),
                "removing": list(moving.removing_replicas),
            }
            for partition, moving in state.reassignments.items()
        ],
    }


def brokers_of(state: ClusterState) -> list[dict[str, Any]]:
    controller = state.description.controller_id
    brokers = []
    for broker in sorted({*state.running, *state.down}):
        node, sizes = state.running.get(broker), state.sizes.get(broker)
        brokers.append(
            {
                "id": broker,
                "running": node is not None,
                "host": node.host if node is not None else None,
                "port": node.port if node is not None else None,
                "rack": node.rack if node is not None else None,
                "controller": broker == controller,
                "leads": state.leads[broker],
                "replicas": state.holds[broker],
                "in_sync": state.in_sync[broker],
                "bytes": sum(sizes.values()) if sizes is not None else None,
            }
        )
    return brokers


def _partition_document(partition: TopicPartition, p: Any) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader": p.leader if p.leader >= 0 else None,
        "leader_epoch": p.leader_epoch,
        "replicas": list(p.replicas),
        "in_sync_replicas": list(p.in_sync_replicas),
    }


def print_state(state: ClusterState) -> None:
    """Prints the state as text and tables."""
    out = console()
    internal = sum(topic.is_internal for topic in state.topics)
    controller = f"broker {state.description.controller_id}" if state.description.controller_id >= 0 else "none"
    print_facts(
        {
            "cluster": state.description.cluster_id,
            "controller": controller + (f" (epoch {state.quorum.epoch})" if state.quorum is not None else ""),
            "topics": count(len(state.topics) - internal) + (f" (and {internal} internal)" if internal else ""),
            "partitions": count(state.partition_count) + health_text(state),
        }
    )
    out.print()
    print_brokers(state)
    lines = dict([*state.offline, *state.under_replicated])
    if lines:
        out.print()
        print_table(
            ["partition", "leader", "epoch", "replicas", "in sync", "missing"],
            [_partition_row(state, partition, p) for partition, p in list(lines.items())[:SHOWN]],
            right=["leader", "epoch"],
        )
        if len(lines) > SHOWN:
            out.print(f"and {count(len(lines) - SHOWN)} more (all of them with --json)", style="dim")
    for partition, moving in list(state.reassignments.items())[:SHOWN]:
        added, removed = (
            ", ".join(map(str, ids)) or "none" for ids in (moving.adding_replicas, moving.removing_replicas)
        )
        out.print(f"{partition} is being moved: adding {added}, removing {removed}")


def print_brokers(state: ClusterState) -> None:
    columns = ["broker", "address", "rack", "controller", "leads", "replicas", "in sync", "size"]
    rows = []
    for broker in brokers_of(state):
        address: Any = f"{broker['host']}:{broker['port']}" if broker["running"] else Text("down", style="bold red")
        in_sync: Any = broker["in_sync"]
        if in_sync < broker["replicas"]:
            in_sync = Text(str(in_sync), style="yellow")
        shown = size(broker["bytes"]) if broker["bytes"] is not None else None
        is_controller = "yes" if broker["controller"] else ""
        rows.append(
            [broker["id"], address, broker["rack"], is_controller, broker["leads"], broker["replicas"], in_sync, shown]
        )
    print_table(columns, rows, right=["broker", "leads", "replicas", "in sync", "size"])


def health_text(state: ClusterState) -> str:
    parts = []
    if state.offline:
        parts.append(f"{count(len(state.offline))} offline")
    if state.under_replicated:
        parts.append(f"{count(len(state.under_replicated))} under-replicated")
    if state.reassignments:
        parts.append(f"{count(len(state.reassignments))} being moved")
    return ": " + ", ".join(parts) if parts else ", all in sync"


def _partition_row(state: ClusterState, partition: TopicPartition, p: Any) -> list[Any]:
    missing = [
        f"{replica} (down)" if replica not in state.running else str(replica)
        for replica in p.replicas
        if replica not in p.in_sync_replicas
    ]
    leader = p.leader if p.leader >= 0 else Text("none", style="bold red")
    return [str(partition), leader, p.leader_epoch, list(p.replicas), list(p.in_sync_replicas), ", ".join(missing)]


def _show_apis(admin: Admin, as_json: bool) -> None:
    served = admin.describe_api_versions()
    if as_json:
        print_json([{"key": a.api_key, "api": a.name, "min": a.min_version, "max": a.max_version} for a in served])
        return
    print_table(
        ["key", "api", "from", "to"],
        [[a.api_key, a.name, a.min_version, a.max_version] for a in served],
        right=["key", "from", "to"],
    )
