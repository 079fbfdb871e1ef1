"""`ottla consume`: prints the records of a topic, from any position, until Ctrl-C or the end of the topic."""

import contextlib
import json
import string
import sys
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from ottla.checks import unsigned_from_text
from ottla.cli.consume.formatters import FORMATTERS, Formatter, check_formatter, make_formatter
from ottla.cli.consume.group_reading import POLL_MS, GroupReading, reset_of
from ottla.cli.output import CommandError, bytes_json, bytes_text, print_error, safe_text, time_text
from ottla.cli.session import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    check_partitions,
    client_settings,
    find_topics,
    open_admin,
    parse_time,
    report_outages,
)
from ottla.client.blocking import Consumer
from ottla.client.core.model import ConsumerRecord
from ottla.client.core.settings import ConsumerConfig, build
from ottla.errors import OttlaError
from ottla.protocol.primitives import ProtocolError
from ottla.types import INT64_MAX, INTERNAL_TOPICS, TopicPartition

FIELDS = ("topic", "partition", "offset", "timestamp", "time", "key", "value", "headers")
Format = Callable[[ConsumerRecord], str | None]
"""Formats a record; None to skip it."""


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Start position: beginning, end, an offset, -N for the last N offsets of each partition, "
            "or a time such as 2026-01-31T12:00 or @1700000000000 (milliseconds).",
        ),
    ] = "beginning",
    partitions: Annotated[
        list[int], typer.Option("--partition", "-p", metavar="N", help="Read only partition N; repeatable.")
    ] = [],  # noqa: B006
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="ID",
            help="Read as a member of this group: start at its committed offsets, and commit printed records.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--max", "-n", metavar="N", min=1, help="Stop after N records.")] = None,
    exit_at_end: Annotated[
        bool,
        typer.Option(
            "--exit-at-end",
            "-e",
            metavar="",
            help="Stop at the end of the topic as of now, instead of waiting for new records.",
        ),
    ] = False,
    format_text: Annotated[
        str,
        typer.Option(
            "--format",
            "-o",
            metavar="FORMAT",
            help="value, key-value, json, full, or a template with {topic} {partition} {offset} {timestamp} "
            "{time} {key} {value} {headers}.",
        ),
    ] = "value",
    formatter: Annotated[
        str | None,
        typer.Option(
            "--formatter",
            metavar="NAME",
            help=f"Decode internal topics: {', '.join(FORMATTERS)}. Can be combined with --json.",
        ),
    ] = None,
    isolation: Annotated[
        str, typer.Option("--isolation", metavar="LEVEL", help="read_uncommitted or read_committed.")
    ] = "read_uncommitted",
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME=VALUE", help="Set a consumer setting by its Kafka name; repeatable."),
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Print a topic's records and wait for new ones until Ctrl-C.

    \b
    Examples:
      ottla consume orders
      ottla consume orders --from end
      ottla consume orders --group billing   # shares partitions, commits
      ottla consume orders --from -5 --exit-at-end   # last 5 of each partition
      ottla consume orders --from 2026-01-31T12:00 --format json | jq .value
      ottla consume orders --format '{partition}/{offset} {key}: {value}' --max 10
      ottla consume __consumer_offsets --formatter offsets -e
    """
    if formatter is not None:
        check_formatter(formatter)
        if format_text not in ("value", "json"):
            raise OttlaError(
                f"--format {format_text} cannot be combined with --formatter", "use one of them; --json works with both"
            )
    show = make_format("json" if as_json else format_text)
    where = parse_start(start)
    given = {"isolation.level": isolation, "auto.offset.reset": "earliest", "allow.auto.create.topics": "false"}
    if group is not None:
        if partitions:
            raise OttlaError("--partition cannot be combined with --group", "the group assigns the partitions")
        given |= {"auto.offset.reset": reset_of(where.kind, start, group), "client.id": "ottla-consume"}
    merged = given | client_settings(bootstrap, settings, ConsumerConfig)
    if group is not None:
        merged |= {"group.id": group, "enable.auto.commit": "false"}
    build(ConsumerConfig, merged, {})  # report invalid settings before anything is opened
    with open_admin(bootstrap, settings) as admin:
        (description,) = find_topics(admin, [topic], _when_missing(topic))
        if formatter is not None:
            show = use_formatter(formatter, make_formatter(formatter, admin), as_json or format_text == "json")
    check_partitions(description, partitions)
    chosen = sorted(set(partitions)) or [p.partition for p in description.partitions]
    report_outages()
    with Consumer(merged) as consumer:
        if group is not None:
            with contextlib.suppress(KeyboardInterrupt):
                GroupReading(consumer, group, show).run(topic, limit, exit_at_end)
            return
        assigned = [TopicPartition(topic, partition) for partition in chosen]
        consumer.assign(assigned)
        _go_to(consumer, assigned, where)
        try:
            _show_records(consumer, assigned, show, limit, exit_at_end)
        except KeyboardInterrupt:
            sys.stdout.flush()
            # Ctrl-C is the normal way to end the command, not a failure.


def _when_missing(topic: str) -> str:
    if topic in INTERNAL_TOPICS:
        return "the broker creates this internal topic when it is first used"
    return f"create it with: ottla topic create {topic}"


def _show_records(
    consumer: Consumer, partitions: list[TopicPartition], show: Format, limit: int | None, exit_at_end: bool
) -> None:
    ends = consumer.end_offsets(partitions) if exit_at_end else {}
    unfinished = {p for p in partitions if exit_at_end and consumer.position(p) < ends[p]}
    if exit_at_end and not unfinished:
        return
    shown = 0
    while True:
        records = consumer.poll(POLL_MS)
        lines = []
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            if exit_at_end and record.offset >= ends[partition]:
                unfinished.discard(partition)
                continue
            line = show(record)
            if line is not None:
                lines.append(line)
                shown += 1
            if exit_at_end and record.offset + 1 >= ends[partition]:
                unfinished.discard(partition)
            if shown == limit:
                break
        if lines:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
        elif exit_at_end:
            # The last offsets may be transaction markers, which are never returned as records.
            unfinished = {p for p in unfinished if consumer.position(p) < ends[p]}
        if shown == limit or (exit_at_end and not unfinished):
            return


# Start position


class Start(NamedTuple):
    """A start position. `kind` is beginning, end, offset, last or time."""

    kind: str
    value: int = 0


def parse_start(text: str) -> Start:
    """
    >>> parse_start("-5"), parse_start("120"), parse_start("@1700000000000")
    (Start(kind='last', value=5), Start(kind='offset', value=120), Start(kind='time', value=1700000000000))
    """
    lowered = text.strip().lower()
    if lowered in ("beginning", "start", "earliest"):
        return Start("beginning")
    if lowered in ("end", "latest"):
        return Start("end")
    try:
        number = unsigned_from_text(lowered.removeprefix("-"))
        if number is None:
            return Start("time", parse_time(text))
        if number > INT64_MAX:
            raise ValueError(number)
        return Start("last" if lowered.startswith("-") else "offset", number)
    except ValueError:
        raise OttlaError(
            f"--from {text} is not a valid start position",
            f"use beginning, end, an offset up to {INT64_MAX}, -N, a time such as 2026-01-31T12:00, or @MILLISECONDS",
        ) from None


def _go_to(consumer: Consumer, partitions: list[TopicPartition], where: Start) -> None:
    if where.kind == "beginning":
        consumer.seek_to_beginning()
    elif where.kind == "end":
        consumer.seek_to_end()
        for partition in partitions:
            consumer.position(partition)  # resolve the end now, not at the first poll
    elif where.kind == "time":
        found = consumer.offsets_for_times(dict.fromkeys(partitions, where.value))
        ends = consumer.end_offsets(partitions)
        for partition in partitions:
            at = found[partition]
            consumer.seek(partition, at.offset if at is not None else ends[partition])
    else:
        first, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        for partition in partitions:
            if where.kind == "last":
                consumer.seek(partition, max(first[partition], ends[partition] - where.value))
            elif not first[partition] <= where.value <= ends[partition] and len(partitions) == 1:
                raise CommandError(
                    f"offset {where.value} is out of range for {partition}",
                    f"valid: {first[partition]} to {ends[partition]}",
                )
            else:
                consumer.seek(partition, min(max(where.value, first[partition]), ends[partition]))


# Formats


def make_format(text: str) -> Format:
    """Returns the function for --format. An invalid template is an error here, before anything is read."""
    clean = safe_text if sys.stdout.isatty() else _same
    if text == "value":
        return lambda record: clean(bytes_text(record.value))
    if text == "key-value":
        return lambda record: clean(f"{bytes_text(record.key)}\t{bytes_text(record.value)}")
    if text == "json":
        return lambda record: json.dumps(record_json(record), ensure_ascii=False)
    if text == "full":
        template = "{topic}-{partition} {offset} {time} {key} {value}{headers}"
    elif "{" in text:
        template = text.replace("\\t", "\t").replace("\\n", "\n")
    else:
        raise OttlaError(
            f"unknown format {text}", "use value, key-value, json, full, or a template such as '{offset} {value}'"
        )
    try:
        used = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise OttlaError(f"invalid template {text!r}: {error}", "write {{ for a literal {") from None
    for name in used:
        if name not in FIELDS:
            raise OttlaError(f"unknown field {{{name}}} in the template", f"fields: {', '.join(FIELDS)}")
    spaced = text == "full"
    return lambda record: clean(template.format_map(_fields(record, spaced)))


def use_formatter(name: str, formatter: Formatter, as_json: bool) -> Format:
    """Formats records with a formatter. Unreadable records are reported on standard error and skipped."""
    clean = safe_text if sys.stdout.isatty() else _same
    read_any = False

    def show(record: ConsumerRecord) -> str | None:
        nonlocal read_any
        try:
            value = formatter.to_json(record) if as_json else formatter.to_text(record)
        except ProtocolError as error:
            if not read_any:
                raise CommandError(
                    f"the formatter {name} cannot read topic {record.topic}", f"offset {record.offset}: {error}"
                ) from None
            place = TopicPartition(record.topic, record.partition)
            print_error(f"cannot read {place} offset {record.offset}: {error}")
            return None
        read_any = True
        if value is None:
            return None
        return clean(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return show


def _fields(record: ConsumerRecord, spaced: bool) -> dict[str, Any]:
    headers = ", ".join(f"{name}={bytes_text(value)}" for name, value in record.headers)
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "time": time_text(record.timestamp),
        "key": bytes_text(record.key),
        "value": bytes_text(record.value),
        "headers": f" [{headers}]" if spaced and headers else headers,
    }


def record_json(record: ConsumerRecord) -> dict[str, Any]:
    """A record for JSON. Bytes that are not UTF-8 become {"base64": …}."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": bytes_json(record.key),
        "value": bytes_json(record.value),
        "headers": [[name, bytes_json(value)] for name, value in record.headers],
    }


def _same(text: str) -> str:
    return text
