"""`ottla cluster reassign` and `drain`: move replicas, and show the progress."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.checks import number_from_text
from ottla.cli.cluster import plan as plans
from ottla.cli.cluster.state import ClusterState, read_state
from ottla.cli.cluster.throttle import remove_throttle, set_throttle, throttled_replicas, throttled_topics
from ottla.cli.cluster.watch import watch_until
from ottla.cli.json_entries import Entry
from ottla.cli.output import console, plural, print_json, print_table
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, find_topics, open_admin
from ottla.client.blocking import Admin
from ottla.errors import OttlaError, error_text_with_type
from ottla.types import INT32_MAX, TopicPartition

REQUEST_PARTITIONS_MAX = 1000
"""The most partitions in one request."""
EXAMPLE = "orders:0=1,2,3"
EXAMPLE_ENTRY = '{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}'
UNTHROTTLE = "ottla cluster reassign --unthrottle"

Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", metavar="", help="Wait until all data is copied, and show the progress.")
]
Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        metavar="BYTES",
        min=1,
        help="Limit of each broker for the move, in bytes per second. With --wait it is removed at the end.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", metavar="", help="Only show what would be done.")]


def reassign(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC:PARTITION=BROKERS | TOPIC",
            help=f"New replicas, preferred leader first, as in {EXAMPLE}; or a topic, with --replication or --cancel.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    replication: Annotated[
        int | None,
        typer.Option("--replication", "-r", metavar="N", min=1, help="New replication factor of the topics."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read the moves from a file in Kafka's JSON format."),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", metavar="", help="Cancel the moves of the topics, or all of them.")
    ] = False,
    throttle: Throttle = None,
    unthrottle: Annotated[
        bool, typer.Option("--unthrottle", metavar="", help="Remove the limit of an earlier --throttle.")
    ] = False,
    dry_run: DryRun = False,
    wait: Wait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move partitions to other brokers. Without arguments: list the moves in progress.

    \b
    Examples:
      ottla cluster reassign                          # show moves in progress
      ottla cluster reassign orders:0=1,2,0 orders:1=2,0,1
      ottla cluster reassign orders --replication 3   # add or remove replicas
      ottla cluster reassign --file moves.json --wait --throttle 20000000
      ottla cluster reassign --cancel
    """
    moves = _merged(_read_file(file), _parse_moves(target for target in targets if "=" in target))
    names = [target for target in targets if "=" not in target]
    if names and replication is None and not cancel:
        raise OttlaError(f"nothing to do for {names[0]}", f"pass --replication N, --cancel, or replicas: {EXAMPLE}")
    if replication is not None and not names:
        raise OttlaError("--replication needs topics", "ottla cluster reassign TOPIC --replication N")
    if cancel and (moves or replication is not None):
        raise OttlaError("--cancel cannot be combined with new moves", "cancel first, then start the new ones")
    if unthrottle and (targets or file is not None or cancel or throttle is not None):
        raise OttlaError("--unthrottle cannot be combined with other options", f"run: {UNTHROTTLE}")
    if throttle is not None and not moves and replication is None:
        raise OttlaError(
            "--throttle needs something to move", f"ottla cluster reassign {EXAMPLE} --throttle {throttle}"
        )
    with open_admin(bootstrap) as admin:
        if unthrottle:
            _unthrottle(admin, as_json)
            return
        if cancel:
            _cancel(admin, names, as_json)
            return
        if not targets and file is None:
            _show_moves(admin, as_json)
            return
        state = read_state(admin)
        topics = find_topics(admin, [*names, *dict.fromkeys(partition.topic for partition in moves)])
        racks = {node.node_id: node.rack for node in state.description.brokers}
        if replication is not None:
            chosen = [topic for topic in topics if topic.name in names]
            moves |= plans.change_replication(chosen, racks, replication)
        known = {TopicPartition(topic.name, p.partition): p for topic in topics for p in topic.partitions}
        for partition in moves:
            if partition not in known:
                last = sum(each.topic == partition.topic for each in known) - 1
                raise OttlaError(f"there is no partition {partition}", f"topic {partition.topic} has 0 to {last}")
        plans.check_brokers(moves, {*racks, *state.down})
        _carry_out(admin, state, moves, throttle=throttle, dry_run=dry_run, wait=wait, as_json=as_json)


def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="Id of the broker.")],
    throttle: Throttle = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move all replicas of a broker to the others, so that it can be removed.

    Keep it running until the data is copied, unless other replicas are in sync;
    then stop it. New topics may still be placed on it until then.

    \b
    Examples:
      ottla cluster drain 2
      ottla cluster drain 2 --dry-run
      ottla cluster drain 2 --no-wait && ottla cluster watch
    """
    with open_admin(bootstrap) as admin:
        state = read_state(admin)
        if broker not in state.running and broker not in state.down:
            known = ", ".join(str(each) for each in sorted({*state.running, *state.down}))
            raise OttlaError(f"there is no broker {broker}", f"the brokers are {known}")
        racks = {node.node_id: node.rack for node in state.description.brokers}
        moves = plans.drain(state.topics, racks, broker)
        _carry_out(admin, state, moves, throttle=throttle, dry_run=dry_run, wait=wait, as_json=as_json)
        if not as_json and not dry_run and (wait or not moves):
            console().print(f"broker {broker} has no replicas; it can be stopped")


def _carry_out(
    admin: Admin,
    state: ClusterState,
    moves: Mapping[TopicPartition, tuple[int, ...]],
    *,
    throttle: int | None,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    before = {partition: p.replicas for partition, p in state.partitions()}
    changed = sorted((partition, replicas) for partition, replicas in moves.items() if before[partition] != replicas)
    throttled = throttled_replicas(changed, before) if throttle is not None else {}
    if not dry_run:
        if throttle is not None and throttled:
            set_throttle(admin, throttle, throttled)
        for start in range(0, len(changed), REQUEST_PARTITIONS_MAX):
            admin.alter_partition_reassignments(dict(changed[start : start + REQUEST_PARTITIONS_MAX]))
    if as_json:
        print_json(
            {
                "started": not dry_run,
                "moves": [
                    {"topic": p.topic, "partition": p.partition, "from": list(before[p]), "to": list(replicas)}
                    for p, replicas in changed
                ],
            }
            | ({"throttle": throttle} if throttled else {})
        )
    elif not changed:
        console().print("nothing to move")
    else:
        print_table(["partition", "from", "to"], [[str(p), list(before[p]), list(replicas)] for p, replicas in changed])
        shown = plural(len(changed), "partition")
        console().print(f"{shown} would be moved" if dry_run else f"moving {shown} (see: ottla cluster watch)")
        if throttled and not dry_run:
            end = "if you interrupt this, remove the limit with" if wait else "when done, remove the limit with"
            console().print(f"each broker copies at most {throttle:,} bytes/s; {end}: {UNTHROTTLE}")
    if wait and changed and not dry_run:
        moved = {partition for partition, _ in changed}
        watch_until(admin, lambda now: not moved & now.reassignments.keys(), is_silent=as_json)
        if throttled:
            remove_throttle(admin, throttled)
            if not as_json:
                console().print("removed the limit")


def _unthrottle(admin: Admin, as_json: bool) -> None:
    topics = throttled_topics(admin, [topic.name for topic in read_state(admin).topics])
    remove_throttle(admin, topics)
    if as_json:
        print_json({"unthrottled": topics})
    else:
        console().print(f"replicas are copied without a limit; {plural(len(topics), 'topic')} had one")


def _cancel(admin: Admin, names: list[str], as_json: bool) -> None:
    if names:
        find_topics(admin, names)
    ongoing = [p for p in admin.list_partition_reassignments() if not names or p.topic in names]
    if ongoing:
        admin.alter_partition_reassignments(dict.fromkeys(ongoing))
    if as_json:
        print_json({"cancelled": [{"topic": p.topic, "partition": p.partition} for p in ongoing]})
    else:
        console().print(f"cancelled {plural(len(ongoing), 'move')}" if ongoing else "nothing is being moved")


def _show_moves(admin: Admin, as_json: bool) -> None:
    ongoing = admin.list_partition_reassignments()
    if as_json:
        print_json(
            [
                {
                    "topic": p.topic,
                    "partition": p.partition,
                    "replicas": list(moving.replicas),
                    "adding": list(moving.adding_replicas),
                    "removing": list(moving.removing_replicas),
                }
                for p, moving in ongoing.items()
            ]
        )
    elif not ongoing:
        console().print("nothing is being moved", style="dim")
    else:
        print_table(
            ["partition", "replicas", "adding", "removing"],
            [[str(p), m.replicas, m.adding_replicas, m.removing_replicas] for p, m in ongoing.items()],
        )


def _parse_moves(targets: Any) -> dict[TopicPartition, tuple[int, ...]]:
    moves: dict[TopicPartition, tuple[int, ...]] = {}
    for target in targets:
        where, _, brokers = target.partition("=")
        topic, colon, index = where.rpartition(":")
        number = number_from_text(index)
        ids = [number_from_text(broker) for broker in brokers.split(",")]
        if not colon or not topic or number is None or number < 0:
            raise OttlaError(f"{target} does not name a partition", f"write TOPIC:PARTITION=BROKERS, as in {EXAMPLE}")
        if any(broker is None or broker < 0 for broker in ids):
            raise OttlaError(f"{target}: brokers must be comma-separated ids", f"as in {EXAMPLE}")
        partition = TopicPartition(topic, number)
        if partition in moves:
            raise OttlaError(f"{partition} is moved twice", "pass it once")
        moves[partition] = tuple(broker for broker in ids if broker is not None)
    return moves


def _read_file(file: Path | None) -> dict[TopicPartition, tuple[int, ...]]:
    """Kafka's format, as kafka-reassign-partitions reads and writes it."""
    if file is None:
        return {}
    try:
        entries = json.loads(file.read_bytes())["partitions"]
        if not isinstance(entries, list):
            raise TypeError("partitions must be a list")
    except OSError as error:
        raise OttlaError(f"cannot read {file}: {error.strerror}", "check the path and its permissions") from None
    except (KeyError, TypeError, ValueError) as error:
        raise OttlaError(
            f"{file} is not a list of moves: {error_text_with_type(error)}",
            f'write {{"partitions": [{EXAMPLE_ENTRY}]}}',
        ) from None
    moves: dict[TopicPartition, tuple[int, ...]] = {}
    for number, fields in enumerate(entries, start=1):
        entry = Entry(f"{file}, entry {number}", fields, EXAMPLE_ENTRY)
        partition = TopicPartition(entry.text("topic"), entry.number("partition", at_most=INT32_MAX))
        if partition in moves:
            raise OttlaError(f"{entry.where}: {partition} is moved twice", "list it once")
        moves[partition] = entry.numbers("replicas", "broker", at_most=INT32_MAX)
    return moves


def _merged(
    file: dict[TopicPartition, tuple[int, ...]], arguments: dict[TopicPartition, tuple[int, ...]]
) -> dict[TopicPartition, tuple[int, ...]]:
    for partition in arguments:
        if partition in file:
            raise OttlaError(f"{partition} is moved twice", "remove it from the file or from the arguments")
    return {**file, **arguments}
