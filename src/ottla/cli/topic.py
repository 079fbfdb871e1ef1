"""`ottla topic`: create, list, describe, alter and delete topics."""

from collections import defaultdict
from typing import Annotated, Any

import typer
from rich.text import Text

from ottla.cli.output import console, count, plural, print_facts, print_json, print_table, size
from ottla.cli.session import (
    DEFAULT_BOOTSTRAP,
    NOT_SERVED,
    AsJson,
    Bootstrap,
    Yes,
    check_topic_name,
    confirm,
    find_open_transactions,
    find_topics,
    open_admin,
    parse_pairs,
)
from ottla.client.blocking import Admin
from ottla.client.core.model import EARLIEST, LATEST, TopicDescription
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.types import TopicPartition

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

Configs = Annotated[
    list[str], typer.Option("--config", "-c", metavar="NAME=VALUE", help="Set a topic setting; repeatable.")
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name: letters, digits, '.', '_' and '-'.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", metavar="N", min=1, help="Number of partitions. Default: the broker's num.partitions."
        ),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication",
            "-r",
            "--replication-factor",
            metavar="N",
            min=1,
            help="Replication factor. Default: the broker's default.replication.factor.",
        ),
    ] = None,
    configs: Configs = [],  # noqa: B006
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", metavar="", help="Succeed if the topic already exists.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create a topic.

    \b
    Examples:
      ottla topic create orders --partitions 6
      ottla topic create prices -c cleanup.policy=compact
      ottla topic create log -c retention.ms=3600000 --if-not-exists
    """
    check_topic_name(name)
    settings = parse_pairs(configs, "--config")
    with open_admin(bootstrap) as admin:
        try:
            made = admin.create_topic(
                name, partitions=partitions or -1, replication_factor=replication or -1, configs=settings
            )
        except KafkaError as error:
            if error.code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
                if as_json:
                    print_json({"topic": name, "created": False})
                else:
                    console().print(f"topic {name} already exists")
                return
            raise
        topic = admin.describe_topics([name])[0] if made.partitions < 0 else None
    count_partitions = len(topic.partitions) if topic is not None else made.partitions
    copies = topic.replication_factor if topic is not None else made.replication_factor
    if as_json:
        print_json({"topic": name, "created": True, "partitions": count_partitions, "replication": copies})
    else:
        shown = plural(count_partitions, "partition")
        console().print(f"created topic {name}: {shown}, replication {copies}")


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", metavar="", help="Include internal topics.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the topics with their number of records and size.

    \b
    Examples:
      ottla topic list
      ottla topic list --json | jq -r '.[].topic'
    """
    with open_admin(bootstrap) as admin:
        topics = admin.list_topics(include_internal=internal)
        records = admin.count_records([topic.name for topic in topics]) if topics else {}
        sizes = find_sizes(admin)
    rows: list[dict[str, Any]] = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replication": topic.replication_factor,
            "records": records[topic.name],
            "bytes": sum(sizes.get(TopicPartition(topic.name, p.partition), 0) for p in topic.partitions),
        }
        for topic in topics
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        console().print("no topics yet (create one with: ottla topic create NAME)", style="dim")
    else:
        print_table(
            ["topic", "partitions", "replication", "records", "size"],
            [[r["topic"], r["partitions"], r["replication"], count(r["records"]), size(r["bytes"])] for r in rows],
            right=["partitions", "replication", "records", "size"],
        )


@app.command()
def describe(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topic names.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show a topic's partitions and its non-default settings.

    Replicas that are not in sync are marked: behind, or down.

    \b
    Examples:
      ottla topic describe orders
      ottla topic describe orders prices --json
    """
    with open_admin(bootstrap) as admin:
        topics = find_topics(admin, names)
        described = [_describe(admin, topic) for topic in topics]
    if as_json:
        print_json(described)
        return
    for i, topic in enumerate(described):
        if i:
            console().print()
        _print_description(topic)


def _describe(admin: Admin, topic: TopicDescription) -> dict[str, Any]:
    led = [TopicPartition(topic.name, p.partition) for p in topic.partitions if p.leader >= 0]
    first = admin.list_offsets(dict.fromkeys(led, EARLIEST))
    last = admin.list_offsets(dict.fromkeys(led, LATEST))
    stable = admin.list_offsets(dict.fromkeys(led, LATEST), isolation_level="read_committed")
    held = [p for p in led if (end := last[p]) is not None and (at := stable[p]) is not None and at.offset < end.offset]
    holders = find_open_transactions(admin, held)
    sizes = find_sizes(admin)
    configs = [entry for entry in admin.describe_configs("topic", topic.name) if entry.source == "topic"]
    partitions = []
    for p in topic.partitions:
        partition = TopicPartition(topic.name, p.partition)
        start, end = first.get(partition), last.get(partition)
        partitions.append(
            {
                "partition": p.partition,
                "leader": p.leader if p.leader >= 0 else None,
                "leader_epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "in_sync_replicas": list(p.in_sync_replicas),
                "out_of_sync_replicas": [replica for replica in p.replicas if replica not in p.in_sync_replicas],
                "offline_replicas": list(p.offline_replicas),
                "first_offset": start.offset if start is not None else None,
                "end_offset": end.offset if end is not None else None,
                "last_stable_offset": at.offset if (at := stable.get(partition)) is not None else None,
                "open_transactions": [
                    {
                        "transactional_id": found.transactional_id,
                        "producer_id": found.producer_id,
                        "first_offset": found.first_offset,
                    }
                    for found in holders.get(partition, ())
                ],
                "bytes": sizes.get(partition),
            }
        )
    return {
        "topic": topic.name,
        "topic_id": topic.id_text,
        "internal": topic.is_internal,
        "replication": topic.replication_factor,
        "partitions": partitions,
        "configs": {entry.name: entry.value for entry in configs},
    }


def _print_description(topic: dict[str, Any]) -> None:
    partitions = topic["partitions"]
    records = sum((p["end_offset"] or 0) - (p["first_offset"] or 0) for p in partitions)
    facts = {
        "topic": topic["topic"] + (" (internal)" if topic["internal"] else ""),
        "id": topic["topic_id"],
        "partitions": len(partitions),
        "replication": topic["replication"],
        "records": count(records),
        "settings": ", ".join(f"{name}={value}" for name, value in topic["configs"].items()) or "all default",
    }
    print_facts(facts)
    console().print()
    rows = []
    for p in partitions:
        in_sync = Text(
            ", ".join(map(str, p["in_sync_replicas"])) or "none", style="yellow" if p["out_of_sync_replicas"] else ""
        )
        leader = Text("none", style="red") if p["leader"] is None else p["leader"]
        first, end = p["first_offset"], p["end_offset"]
        held = count(end - first) if first is not None and end is not None else None
        shown = size(p["bytes"]) if p["bytes"] is not None else None
        rows.append([p["partition"], leader, p["leader_epoch"], _replicas(p), in_sync, first, end, held, shown])
    columns = ["partition", "leader", "epoch", "replicas", "in sync", "first offset", "end offset", "records", "size"]
    numeric = ["partition", "leader", "epoch", "first offset", "end offset", "records", "size"]
    print_table(columns, rows, right=numeric)
    for p in partitions:
        for found in p["open_transactions"][:1]:
            who = found["transactional_id"] or f"producer {found['producer_id']} (unknown to its coordinator)"
            console().print(
                Text(
                    f"partition {p['partition']}: read_committed consumers stop at offset {p['last_stable_offset']}: "
                    f"the transaction of {who} has been open since offset {found['first_offset']}",
                    style="yellow",
                )
            )


def _replicas(partition: dict[str, Any]) -> Text:
    """The replicas; those that are not in sync are marked."""
    text = Text()
    for number, replica in enumerate(partition["replicas"]):
        text.append(", " if number else "")
        if replica in partition["offline_replicas"]:
            text.append(f"{replica} (down)", style="red")
        elif replica in partition["out_of_sync_replicas"]:
            text.append(f"{replica} (behind)", style="yellow")
        else:
            text.append(str(replica))
    return text


@app.command()
def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")],
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="N", min=1, help="Increase to N partitions. Cannot be undone."),
    ] = None,
    configs: Configs = [],  # noqa: B006
    reset: Annotated[
        list[str],
        typer.Option("--reset", metavar="NAME", help="Reset a setting to its default; repeatable."),
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic or change its settings.

    \b
    Examples:
      ottla topic alter orders --partitions 12
      ottla topic alter orders -c retention.ms=86400000 --reset cleanup.policy
    """
    changes: dict[str, str | None] = dict(parse_pairs(configs, "--config"))
    for setting in reset:
        if setting in changes:
            raise OttlaError(f"{setting} is in both --config and --reset", "choose one")
        changes[setting] = None
    if partitions is None and not changes:
        raise OttlaError("nothing to change", "pass --partitions, --config or --reset")
    with open_admin(bootstrap) as admin:
        (topic,) = find_topics(admin, [name])
        if partitions is not None and partitions <= len(topic.partitions):
            has = plural(len(topic.partitions), "partition")
            raise OttlaError(f"topic {name} already has {has}", "the number of partitions can only increase")
        if changes:
            admin.alter_configs("topic", name, changes)
        if partitions is not None:
            admin.create_partitions({name: partitions})
    done = [f"{len(topic.partitions)} -> {partitions} partitions"] if partitions is not None else []
    done += [f"{key}={value}" if value is not None else f"{key} reset" for key, value in changes.items()]
    if as_json:
        print_json({"topic": name, "partitions": partitions or len(topic.partitions), "configs": changes})
    else:
        console().print(f"changed topic {name}: {', '.join(done)}")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topic names.")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete topics and all their records. Asks for confirmation on a terminal.

    \b
    Examples:
      ottla topic delete orders
      ottla topic delete test-1 test-2 --yes
    """
    with open_admin(bootstrap) as admin:
        topics = find_topics(admin, names)

        def show() -> None:
            records = admin.count_records([topic.name for topic in topics])
            for topic in topics:
                console().print(f"{topic.name}: {plural(records[topic.name], 'record')}")

        confirm("Delete permanently?", yes, show)
        admin.delete_topics(names)
    if as_json:
        print_json({"deleted": list(names)})
    else:
        console().print(f"deleted {', '.join(names)}")


def find_sizes(admin: Admin) -> dict[TopicPartition, int]:
    """Bytes on disk of each partition's largest replica; empty if DescribeLogDirs is not supported or allowed."""
    sizes: dict[TopicPartition, int] = defaultdict(int)
    try:
        for directory in admin.describe_log_dirs():
            for replica in directory.replicas:
                sizes[replica.partition] = max(sizes[replica.partition], replica.size_bytes)
    except KafkaError as error:
        if error.code not in NOT_SERVED:
            raise
    return dict(sizes)
