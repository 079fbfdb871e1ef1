"""`ottla txn`: inspect transactions and their history, find hanging ones, abort or commit them."""

from typing import Annotated, Any

import typer
from rich.text import Text

from ottla.cli.output import CommandError, console, duration, plural, print_facts, print_json, print_table, time_text
from ottla.cli.session import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    Yes,
    check_known,
    confirm,
    find_topics,
    open_admin,
    read_to_end,
)
from ottla.client.admin.transaction_model import (
    OPEN_STATES,
    STATES,
    HangingTransaction,
    HistoryStep,
    StoredTransaction,
    TransactionDescription,
    history_of,
    read_key,
    read_value,
)
from ottla.client.blocking import Admin
from ottla.clock import system_clock
from ottla.errors import ErrorCode, KafkaError, OttlaError, did_you_mean
from ottla.types import TRANSACTIONS_TOPIC, TopicPartition, partition_for

app = typer.Typer(help="Inspect transactions, find hanging ones, and abort or commit them.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="Transactional id.")]

_COLOURS = {**dict.fromkeys(OPEN_STATES, "yellow"), "CompleteAbort": "dim"}


@app.command("list")
def list_transactions(
    states: Annotated[
        list[str],
        typer.Option(
            "--state", metavar="STATE", help="Only transactions in this state, for example Ongoing; repeatable."
        ),
    ] = [],  # noqa: B006
    longer: Annotated[
        float | None,
        typer.Option("--longer-than", metavar="SECONDS", min=0, help="Only transactions open for longer than this."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="Only ids that match this regular expression completely."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List transactional ids and the state of their transactions.

    \b
    Examples:
      ottla txn list
      ottla txn list --state ongoing --longer-than 60
      ottla txn list --pattern 'billing-.*' --json
    """
    wanted = check_known("--state", states, STATES)
    if longer is not None and not wanted:
        wanted = list(OPEN_STATES)
    with open_admin(bootstrap) as admin:
        found = admin.list_transactions(
            states=wanted, longer_than_ms=None if longer is None else int(longer * 1000), pattern=pattern
        )
    rows = [
        {
            "transactional_id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
            "coordinator": each.coordinator_id,
        }
        for each in found
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        like = " match" if states or pattern or longer is not None else ""
        console().print(f"no transactional ids{like}", style="dim")
    else:
        print_table(
            ["transactional id", "state", "producer id", "coordinator"],
            [[r["transactional_id"], _state(str(r["state"])), r["producer_id"], r["coordinator"]] for r in rows],
            right=["producer id", "coordinator"],
        )


@app.command()
def describe(
    names: Annotated[list[str], typer.Argument(metavar="ID", help="Transactional ids.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show a transaction: its state, producer, timeout, age and partitions.

    \b
    Examples:
      ottla txn describe billing-1
      ottla txn describe billing-1 --json | jq .partitions
    """
    with open_admin(bootstrap) as admin:
        described = [_find(admin, name) for name in names]
    if as_json:
        print_json([_described_json(each) for each in described])
        return
    for i, each in enumerate(described):
        if i:
            console().print()
        _print_described(each)


def _described_json(found: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": None if found.is_two_phase else found.timeout_ms,
        "started_ms": found.start_ms if found.start_ms >= 0 else None,
        "coordinator": found.coordinator_id,
        "partitions": [str(partition) for partition in found.partitions],
    }


def _print_described(found: TransactionDescription) -> None:
    is_open = found.state in OPEN_STATES
    facts: dict[str, Any] = {
        "transactional id": found.transactional_id,
        "state": _state(found.state),
        "producer": f"{found.producer_id}, epoch {found.producer_epoch}",
        "timeout": "none (two-phase commit: an external coordinator decides)"
        if found.is_two_phase
        else duration(found.timeout_ms / 1000),
        "coordinator": f"broker {found.coordinator_id}",
    }
    if is_open and found.start_ms >= 0:
        open_for = duration(max(0, system_clock() - found.start_ms) / 1000)
        facts["started"] = f"{time_text(found.start_ms)}, {open_for} ago"
    if is_open:
        facts["partitions" if found.state == "Ongoing" else "markers to write"] = (
            ", ".join(map(str, found.partitions)) or "none"
        )
    print_facts(facts)


@app.command()
def abort(
    name: Annotated[
        str | None, typer.Argument(metavar="ID", help="Transactional id. Omit it to abort a hanging transaction.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Topic of the hanging transaction.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", metavar="N", min=0, help="Partition of the hanging transaction.")
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", metavar="N", min=0, help="First offset of the hanging transaction."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Abort it even if its coordinator still manages it.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Abort an open transaction.

    With ID, the coordinator aborts the transaction in every partition. A
    hanging transaction (open in a partition, but unknown to its coordinator)
    is aborted by a marker in that partition: pass --topic, --partition and
    --start-offset as shown by ottla txn find-hanging.

    \b
    Examples:
      ottla txn abort billing-1
      ottla txn abort --topic orders --partition 3 --start-offset 1042
    """
    if name is not None:
        if topic is not None or partition is not None or start_offset is not None:
            raise OttlaError(
                "ID cannot be combined with --topic, --partition or --start-offset",
                "pass either ID or all three options",
            )
        _end(name, commit=False, yes=yes, bootstrap=bootstrap, as_json=as_json)
        return
    if topic is None or partition is None or start_offset is None:
        raise OttlaError("no transaction selected", "pass ID, or --topic, --partition and --start-offset")
    where = TopicPartition(topic, partition)
    with open_admin(bootstrap) as admin:
        find_topics(admin, [topic])
        producers = admin.describe_producers([where])[where]
        producer = next((p for p in producers if p.transaction_start_offset == start_offset), None)
        if producer is None:
            begins = ", ".join(str(p.transaction_start_offset) for p in producers if p.transaction_start_offset >= 0)
            raise CommandError(
                f"no open transaction in {where} starts at offset {start_offset}",
                f"open transactions start at {begins}" if begins else "the partition has no open transactions",
            )
        hangs = any(h.producer.producer_id == producer.producer_id for h in admin.find_hanging_transactions([where]))
        if not hangs and not force:
            raise CommandError(
                f"the transaction of producer {producer.producer_id} is not hanging: its coordinator will end it",
                "abort it by its id (see: ottla txn list), or pass --force",
            )
        confirm(f"Abort the transaction of producer {producer.producer_id} in {where}?", yes)
        admin.abort_in_partition(where, producer)
    done = {"partition": str(where), "producer_id": producer.producer_id, "aborted": True}
    if as_json:
        print_json(done)
    else:
        console().print(f"aborted the transaction of producer {producer.producer_id} in {where}")


@app.command()
def commit(
    name: Id,
    producer_id: Annotated[
        int, typer.Option("--producer-id", metavar="N", help="Producer id of the prepared transaction.")
    ],
    producer_epoch: Annotated[
        int, typer.Option("--epoch", metavar="N", help="Producer epoch of the prepared transaction.")
    ],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Commit a prepared transaction of a two-phase commit (KIP-939).

    For transactions whose producer is gone and whose external coordinator
    decided to commit.

    \b
    Examples:
      ottla txn commit warehouse-sink --producer-id 4001 --epoch 7
    """
    expected = (producer_id, producer_epoch)
    _end(name, commit=True, yes=yes, bootstrap=bootstrap, as_json=as_json, expected=expected)


def _end(
    name: str, *, commit: bool, yes: bool, bootstrap: str, as_json: bool, expected: tuple[int, int] | None = None
) -> None:
    with open_admin(bootstrap) as admin:
        found = _find(admin, name)
        if found.state != "Ongoing":
            raise CommandError(f"transactional id {name} has no open transaction", f"its state is {found.state}")
        if commit and not found.is_two_phase:
            raise CommandError(
                f"the transaction of {name} does not use two-phase commit", "only its producer can commit it"
            )
        if expected is not None and expected != (found.producer_id, found.producer_epoch):
            raise CommandError(
                f"the transaction of {name} now belongs to producer {found.producer_id}, epoch {found.producer_epoch}",
                f"not to producer {expected[0]}, epoch {expected[1]}; nothing was committed",
            )
        doing = "Commit" if commit else "Abort"
        confirm(f"{doing} the transaction of {name} in {plural(len(found.partitions), 'partition')}?", yes)
        admin.end_transaction(name, found.producer_id, found.producer_epoch, commit=commit)
    done = "committed" if commit else "aborted"
    if as_json:
        print_json({"transactional_id": name, done: True, "partitions": [str(p) for p in found.partitions]})
    else:
        console().print(f"{done} the transaction of {name} in {plural(len(found.partitions), 'partition')}")


@app.command("find-hanging")
def find_hanging(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics to check. Default: all.")] = [],  # noqa: B006
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Find hanging transactions, which block read_committed consumers.

    A transaction hangs if it is open in a partition, but unknown to its
    coordinator, so that nothing will ever end it. Exits with status 1 if
    there are any.

    \b
    Examples:
      ottla txn find-hanging
      ottla txn find-hanging orders --json
    """
    with open_admin(bootstrap) as admin:
        described = find_topics(admin, topics) if topics else admin.list_topics(include_internal=True)
        partitions = [
            TopicPartition(topic.name, p.partition) for topic in described for p in topic.partitions if p.leader >= 0
        ]
        hanging = admin.find_hanging_transactions(partitions)
    if as_json:
        print_json([_hanging_json(each) for each in hanging])
    elif not hanging:
        console().print(f"no hanging transactions in {plural(len(partitions), 'partition')}")
    else:
        print_table(
            ["partition", "producer id", "epoch", "first offset", "last write", "reason"],
            [
                [
                    str(each.partition),
                    each.producer.producer_id,
                    each.producer.producer_epoch,
                    each.producer.transaction_start_offset,
                    time_text(each.producer.last_timestamp),
                    each.reason,
                ]
                for each in hanging
            ],
            right=["producer id", "epoch", "first offset"],
        )
        console().print("abort one with: ottla txn abort --topic TOPIC --partition N --start-offset N", style="dim")
    if hanging:
        raise typer.Exit(1)


def _hanging_json(found: HangingTransaction) -> dict[str, Any]:
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "producer_id": found.producer.producer_id,
        "producer_epoch": found.producer.producer_epoch,
        "coordinator_epoch": found.producer.coordinator_epoch,
        "start_offset": found.producer.transaction_start_offset,
        "last_timestamp": found.producer.last_timestamp,
        "transactional_id": found.transactional_id,
        "reason": found.reason,
    }


@app.command()
def timeline(
    name: Id,
    last: Annotated[int, typer.Option("--last", "-n", metavar="N", min=1, help="Show only the last N steps.")] = 40,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the history of a transactional id, step by step.

    Reads __transaction_state; compaction may have removed old steps.

    \b
    Examples:
      ottla txn timeline billing-1
      ottla txn timeline billing-1 --last 4 --json
    """
    with open_admin(bootstrap) as admin:
        counts = {topic.name: len(topic.partitions) for topic in admin.list_topics(include_internal=True)}
    if TRANSACTIONS_TOPIC not in counts:
        raise CommandError("no transactions on this cluster yet", f"the topic {TRANSACTIONS_TOPIC} does not exist")
    steps, others = read_steps(bootstrap, name, counts[TRANSACTIONS_TOPIC])
    if not steps:
        hint = did_you_mean(name, others, "list the ids with: ottla txn list")
        raise CommandError(f"transactional id {name} has no history", hint)
    first = steps[0][1]
    is_whole = first is not None and first.state == "Empty" and first.producer_epoch == 0
    moments = history_of(steps)
    shown = moments[-last:]
    if as_json:
        print_json([_moment_json(moment) for moment in shown])
        return
    if len(shown) < len(moments):
        console().print(f"… {plural(len(moments) - len(shown), 'earlier step')}", style="dim")
    elif not is_whole:
        console().print("… earlier steps were removed by compaction", style="dim")
    for moment in shown:
        _print_moment(moment)
    if shown[-1].state in OPEN_STATES:
        since = duration(max(0, system_clock() - shown[-1].at_ms) / 1000)
        console().print(f"still {shown[-1].state} after {since}", style="yellow")


def read_steps(
    bootstrap: str, name: str, partition_count: int
) -> tuple[list[tuple[int, StoredTransaction | None]], list[str]]:
    """The stored steps of a transactional id, oldest first, and the other ids in the same partition."""
    partition = TopicPartition(TRANSACTIONS_TOPIC, partition_for(name, partition_count))
    steps: list[tuple[int, StoredTransaction | None]] = []
    others: set[str] = set()
    for record in read_to_end(bootstrap, partition):
        found = None if record.key is None else read_key(record.key)
        if found == name:
            steps.append((record.timestamp, None if record.value is None else read_value(name, record.value)))
        elif found is not None:
            others.add(found)
    return steps, sorted(others)


def _moment_json(moment: HistoryStep) -> dict[str, Any]:
    return {
        "at_ms": moment.at_ms,
        "gap_ms": moment.gap_ms,
        "what": moment.what,
        "state": moment.state,
        "producer_id": moment.producer_id,
        "producer_epoch": moment.producer_epoch,
        "partitions": [str(partition) for partition in moment.partitions],
    }


def _print_moment(moment: HistoryStep) -> None:
    line = Text(time_text(moment.at_ms))
    gap = "" if moment.gap_ms is None else f"+{duration(max(0, moment.gap_ms) / 1000)}"
    line.append(f"  {gap:>12}  ", style="dim")
    line.append(f"{moment.state:<14}", style=_COLOURS.get(moment.state, ""))
    line.append(f"  {moment.what}")
    line.append(f"  (producer {moment.producer_id}, epoch {moment.producer_epoch})", style="dim")
    if moment.partitions:
        names = [str(partition) for partition in moment.partitions]
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        line.append(f"  {', '.join(names[:6])}{more}", style="dim")
    console().print(line, soft_wrap=True)


def _find(admin: Admin, name: str) -> TransactionDescription:
    if not name:
        raise OttlaError("the transactional id is empty", "list the ids with: ottla txn list")
    try:
        return admin.describe_transactions([name])[0]
    except KafkaError as error:
        if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
    known = [listing.transactional_id for listing in admin.list_transactions()]
    hint = did_you_mean(name, known, "list the ids with: ottla txn list")
    raise CommandError(f"transactional id {name} does not exist", hint)


def _state(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, ""))
