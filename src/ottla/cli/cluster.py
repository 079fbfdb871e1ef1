"""`ottla cluster`: the brokers of a cluster, its controller, and how much data each broker holds."""

from collections import defaultdict
from typing import Annotated, Any

import typer

from ottla.cli.output import console, count, print_facts, print_json, print_table, size
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, open_admin
from ottla.client.blocking import Admin
from ottla.errors import ErrorCode, KafkaError


def cluster(
    apis: Annotated[
        bool, typer.Option("--apis", metavar="", help="List the APIs and versions that a broker supports.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the brokers, the controller, and how much data each broker holds.

    \b
    Examples:
      ottla cluster
      ottla cluster --apis
      ottla cluster --bootstrap broker-1:9092,broker-2:9092 --json
    """
    with open_admin(bootstrap) as admin:
        if apis:
            _show_apis(admin, as_json)
            return
        description = admin.describe_cluster()
        topics = admin.list_topics(include_internal=True)
        directories = _directories(admin)
    led: dict[int, int] = defaultdict(int)
    held: dict[int, int] = defaultdict(int)
    leaderless = lagging = 0
    for topic in topics:
        for p in topic.partitions:
            led[p.leader] += 1
            for replica in p.replicas:
                held[replica] += 1
            leaderless += p.leader < 0
            lagging += len(p.in_sync_replicas) < len(p.replicas)
    brokers: list[dict[str, Any]] = [
        {
            "id": node.node_id,
            "host": node.host,
            "port": node.port,
            "rack": node.rack,
            "controller": node.node_id == description.controller_id,
            "leads": led[node.node_id],
            "replicas": held[node.node_id],
            "bytes": directories.get(node.node_id),
        }
        for node in description.brokers
    ]
    document: dict[str, Any] = {
        "cluster_id": description.cluster_id,
        "controller": description.controller_id,
        "topics": sum(not topic.is_internal for topic in topics),
        "internal_topics": sum(topic.is_internal for topic in topics),
        "partitions": sum(len(topic.partitions) for topic in topics),
        "partitions_without_leader": leaderless,
        "partitions_out_of_sync": lagging,
        "brokers": brokers,
    }
    if as_json:
        print_json(document)
        return
    internal = document["internal_topics"]
    print_facts(
        {
            "cluster": description.cluster_id,
            "topics": count(document["topics"]) + (f" (and {internal} internal)" if internal else ""),
            "partitions": count(document["partitions"])
            + (f", {leaderless} without a leader" if leaderless else "")
            + (f", {lagging} not fully in sync" if lagging else ""),
        }
    )
    console().print()
    print_table(
        ["broker", "address", "rack", "controller", "leads", "replicas", "size"],
        [
            [
                broker["id"],
                f"{broker['host']}:{broker['port']}",
                broker["rack"],
                "yes" if broker["controller"] else "",
                broker["leads"],
                broker["replicas"],
                size(broker["bytes"]) if broker["bytes"] is not None else None,
            ]
            for broker in brokers
        ],
        right=["broker", "leads", "replicas", "size"],
    )


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


def _directories(admin: Admin) -> dict[int, int]:
    """Bytes on disk by broker id; empty if the cluster does not support or allow DescribeLogDirs."""
    sizes: dict[int, int] = defaultdict(int)
    try:
        for directory in admin.describe_log_dirs():
            sizes[directory.node_id] += sum(replica.size_bytes for replica in directory.replicas)
    except KafkaError as error:
        if error.code not in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            raise
    return dict(sizes)
