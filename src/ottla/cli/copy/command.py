"""`ottla copy`: copies topics and groups to another cluster, and compares both sides."""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from ottla.cli.copy.copier import Copier, Status
from ottla.cli.copy.groups import GroupCopier, group_matcher
from ottla.cli.copy.sides import Side, side_from
from ottla.cli.copy.topics import choose
from ottla.cli.copy.verification import Compared, Verifier
from ottla.cli.output import CommandError, console, count, plural, print_table, size
from ottla.client.consumer.arrow import arrow_module
from ottla.clock import monotonic
from ottla.errors import OttlaError

LINE_EVERY_S = 5.0
"""How often a line of progress is printed in a pipe."""


def copy(
    source: Annotated[
        str, typer.Option("--from", metavar="HOST:PORT,…", help="Brokers of the source cluster.", show_default=False)
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="HOST:PORT,…", help="Brokers of the target cluster.", show_default=False)
    ],
    topics: Annotated[
        str,
        typer.Option("--topics", metavar="REGEX", help="Topics to copy; must match whole names.", show_default=False),
    ],
    groups: Annotated[
        str | None,
        typer.Option("--groups", metavar="REGEX", help="Also translate the committed offsets of these groups."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Keep copying new records and topics until Ctrl-C.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", metavar="", help="Copy nothing; compare what was copied, by counts and checksums."),
    ] = False,
    from_config: Annotated[
        str | None,
        typer.Option("--from-config", metavar="FILE", help="Client settings for the source: TLS, SASL and others."),
    ] = None,
    to_config: Annotated[
        str | None, typer.Option("--to-config", metavar="FILE", help="Client settings for the target.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON document per line.")] = False,
) -> None:
    """Copy topics to another Kafka cluster, exactly once.

    Works between any two clusters, Ottla or Apache Kafka. Records keep their key,
    value, headers, timestamp, partition and order; missing topics are created
    with the same partitions and settings. The position in the source is stored
    in the target, in the same transaction as the records, so the command can be
    interrupted or killed at any time: the next run continues without losses or
    duplicates. Only committed records are copied. Exit status: 0 done (with
    --verify: equal), 1 failed or different, 2 wrong options.

    \b
    Examples:
      ottla copy --from a:9092 --to b:9092 --topics 'orders|payments'
      ottla copy --from a:9092 --to b:9092 --topics '.*' --groups '.*' --follow
      ottla copy --from a:9092 --to b:9092 --topics '.*' --verify
      ottla copy --from a:9092 --to b:9093 --to-config b.properties --topics '.*'
    """
    arrow_module("arrow_batches")  # an error with a hint, if pyarrow is not installed
    if verify and (follow or groups is not None):
        raise OttlaError(
            "--verify cannot be combined with --follow or --groups: it copies nothing",
            "copy first, then run --verify alone",
        )
    choose([], topics)  # checks the pattern
    if groups is not None:
        group_matcher(groups)
    sides = side_from(source, from_config, "--from"), side_from(target, to_config, "--to")
    if verify:
        _verify(*sides, topics, as_json)
    else:
        asyncio.run(_copy(*sides, topics, groups, follow=follow, as_json=as_json))


async def _copy(
    source: Side,
    target: Side,
    topics: str,
    groups: str | None,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    view = View(as_json)
    copier = Copier(source, target, topics, on_progress=view.show)
    follower = None if groups is None else GroupCopier(source, target, groups, copier.status)

    async def copy_groups() -> None:
        if follower is not None:
            await follower.run(copier.ledger)

    try:
        with view:
            await copier.run(follow=follow, when_refreshed=copy_groups)
    finally:
        if copier.status.partitions:
            view.end(copier.status, {} if follower is None else follower.committed)


class View:
    """Progress: one line that is updated in place on a terminal, else a new line every few seconds."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._began = monotonic()
        self._printed_at: float | None = None
        self._notices = 0
        self._status: Any = None

    def __enter__(self) -> "View":
        if not self._as_json and console().is_terminal:
            self._status = Console(highlight=False).status("connecting …")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, status: Status) -> None:
        now = monotonic()
        for notice in status.notices[self._notices :]:
            print(f"ottla: {notice}", file=sys.stderr)
        self._notices = len(status.notices)
        if self._status is not None:
            self._status.update(self._line(status))
        elif self._printed_at is None or now - self._printed_at >= LINE_EVERY_S:
            self._printed_at = now
            self._print(json.dumps(self._document(status)) if self._as_json else self._line(status))

    def end(self, status: Status, groups: Mapping[str, Mapping[Any, int]]) -> None:
        self.show(status)
        if self._as_json:
            offsets = {
                group: [
                    {"topic": each.topic, "partition": each.partition, "offset": at} for each, at in committed.items()
                ]
                for group, committed in groups.items()
            }
            self._print(json.dumps(self._document(status) | {"finished": status.left == 0, "groups": offsets}))
            return
        self._print(self._line(status))
        if status.by_topic:
            print_table(["topic", "copied"], sorted(status.by_topic.items()), right=["copied"])
        for group, committed in sorted(groups.items()):
            self._print(f"group {group}: {plural(len(committed), 'partition')} translated")

    def _document(self, status: Status) -> dict[str, Any]:
        return {
            "topics": status.topics,
            "partitions": status.partitions,
            "records": status.records,
            "bytes": status.bytes,
            "transactions": status.transactions,
            "restarts": status.restarts,
            "offsets_left": status.left,
            "seconds": round(monotonic() - self._began, 3),
            "by_topic": status.by_topic,
            "notices": status.notices,
        }

    def _line(self, status: Status) -> str:
        seconds = max(0.001, monotonic() - self._began)
        left = f", about {count(status.left)} to go" if status.left else ""
        return (
            f"{plural(status.records, 'record')} copied ({size(status.bytes)}, {status.records / seconds:,.0f}/s), "
            f"{plural(status.topics, 'topic')}, {plural(status.partitions, 'partition')}{left}"
        )

    @staticmethod
    def _print(line: str) -> None:
        print(line, flush=True)


def _verify(source: Side, target: Side, topics: str, as_json: bool) -> None:
    def show(result: Compared) -> None:
        if as_json:
            document = {
                "topic": result.partition.topic,
                "partition": result.partition.partition,
                "source_records": result.source_records,
                "target_records": result.target_records,
                "compared": result.compared,
                "checksums": list(result.checksums),
                "equal": result.is_equal,
                "problem": result.problem,
            }
            print(json.dumps(document), flush=True)

    results = asyncio.run(Verifier(source, target, topics).run(show))
    wrong = [result for result in results if not result.is_equal]
    if not as_json:
        rows = [
            (
                str(each.partition),
                each.source_records,
                each.target_records,
                each.compared,
                each.checksums[0][:8] or None,
                each.problem or "equal",
            )
            for each in results
        ]
        columns = ["partition", "source", "target", "compared", "checksum", "result"]
        print_table(columns, rows, right=["source", "target", "compared"])
    if wrong:
        raise CommandError(
            f"{len(wrong)} of {plural(len(results), 'partition')} differ: {wrong[0].partition}: {wrong[0].problem}",
            "if other producers write to the target, copy into new topics",
        )
