"""`ottla log`: reads log files on disk, Ottla's or Apache Kafka's, without a broker."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from ottla.checks import unsigned_from_text
from ottla.cli.output import (
    CommandError,
    bytes_json,
    bytes_text,
    console,
    plural,
    print_table,
    safe_text,
    size,
    time_text,
)
from ottla.cli.session import AsJson
from ottla.errors import KafkaError, OttlaError
from ottla.log import inspect
from ottla.protocol.records.record_batch import ControlType, Record

app = typer.Typer(help="Inspect log files on disk.", no_args_is_help=True)

SUFFIXES = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")


@app.callback()
def root() -> None:
    """Inspect log files on disk."""


@app.command()
def dump(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Segment and index files, or a partition directory.")
    ],
    records: Annotated[
        bool, typer.Option("--records", "-r", metavar="", help="Also print the records of each batch.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the contents of log files: .log, .index, .timeindex, .snapshot, .txnindex.

    \b
    Reads files of Ottla and of Apache Kafka, including damaged ones. Read-only.
    Exits with status 1 if a file is damaged.

    \b
    Examples:
      ottla log dump ottla-data/orders-0/00000000000000000000.log
      ottla log dump ottla-data/orders-0 --records
      ottla log dump /var/lib/kafka/orders-0/*.log --json | jq .record_count
    """
    problems = 0
    for number, path in enumerate(_files(paths)):
        if number and not as_json:
            console().print()
        problems += _dump_file(path, records, as_json)
    if problems:
        raise CommandError(
            f"found {plural(problems, 'damaged place')}", "a broker truncates an incomplete tail when it starts"
        )


def _files(paths: list[Path]) -> list[Path]:
    """The files to print; a directory is replaced by the log files in it."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            found = [file for file in path.iterdir() if file.suffix in SUFFIXES]
            found.sort(key=lambda file: (file.stem, SUFFIXES.index(file.suffix)))
            if not found:
                raise OttlaError(f"{path} contains no log files", f"their names end in {', '.join(SUFFIXES)}")
            files += found
            continue
        if not path.exists():
            raise OttlaError(f"{path} does not exist", "pass a segment file or a partition directory")
        if path.suffix not in SUFFIXES:
            raise OttlaError(f"{path} is not a log file", f"log files end in {', '.join(SUFFIXES)}")
        files.append(path)
    return files


def _dump_file(path: Path, records: bool, as_json: bool) -> int:
    """Prints one file; returns the number of damaged places in it."""
    if path.suffix == ".log":
        return _dump_segment_json(path, records) if as_json else _dump_segment(path, records)
    try:
        entries = [dict(entry._asdict()) for entry in _READERS[path.suffix](str(path))]
    except ValueError as error:
        _show_problem(path, str(error), as_json)
        return 1
    if as_json:
        for entry in entries:
            _print_line({"file": str(path), **entry})
        return 0
    _print_title(path, "entry" if len(entries) == 1 else "entries", len(entries))
    if entries:
        columns = list(entries[0])
        shown = [[_cell(name, value) for name, value in entry.items()] for entry in entries]
        print_table([name.replace("_", " ") for name in columns], shown, right=[c.replace("_", " ") for c in columns])
    return 0


_READERS: dict[str, Callable[[str], list[Any]]] = {
    ".index": inspect.dump_offset_index,
    ".timeindex": inspect.dump_time_index,
    ".snapshot": inspect.dump_snapshot,
    ".txnindex": inspect.dump_transaction_index,
}


# Segments


def _walk(path: Path) -> Iterator[inspect.DumpedBatch | inspect.DumpedTail]:
    """The batches of a segment. The CRC does not cover offsets, so their order is checked here."""
    next_offset = inspect.base_offset_of(str(path)) if unsigned_from_text(path.stem) is not None else 0
    for item in inspect.dump_segment(str(path)):
        if isinstance(item, inspect.DumpedBatch):
            if item.problem is None and item.header.base_offset < next_offset:
                problem = f"base offset {item.header.base_offset} is too low, expected at least {next_offset}"
                item = item._replace(problem=problem)
            next_offset = item.header.next_offset
        yield item


def _dump_segment(path: Path, records: bool) -> int:
    rows: list[list[Any]] = []
    problems: list[str] = []
    held = 0
    if records:
        _print_title(path)
    for item in _walk(path):
        if isinstance(item, inspect.DumpedTail):
            problems.append(f"{plural(item.size, 'byte')} at position {item.position}: {item.problem}")
            continue
        held += item.header.record_count
        if item.problem is not None:
            problems.append(f"batch at position {item.position}: {item.problem}")
        rows.append(_batch_row(item))
        if records:
            problems += _print_batch(item, rows[-1])
    if not records:
        _print_title(path, "batch" if len(rows) == 1 else "batches", len(rows), plural(held, "record"))
        if rows:
            print_table(_BATCH_COLUMNS, rows, right=_BATCH_NUMBERS)
    for problem in problems:
        console().print(Text(f"damaged: {problem}", style="bold red"))
    return len(problems)


_BATCH_COLUMNS = ["position", "offsets", "records", "size", "epoch", "codec", "time", "producer", "sequence", "type"]
_BATCH_NUMBERS = ["position", "offsets", "records", "size", "epoch", "producer", "sequence"]


def _batch_row(batch: inspect.DumpedBatch) -> list[Any]:
    header = batch.header
    same = header.base_offset == header.last_offset
    offsets = str(header.base_offset) if same else f"{header.base_offset}-{header.last_offset}"
    has_producer = header.producer_id >= 0
    return [
        batch.position,
        offsets,
        header.record_count,
        size(header.size_bytes),
        header.partition_leader_epoch,
        header.codec.name.lower(),
        time_text(header.max_timestamp),
        f"{header.producer_id}/{header.producer_epoch}" if has_producer else "-",
        header.base_sequence if header.base_sequence >= 0 else "-",
        ", ".join(_kinds(batch)) or "-",
    ]


def _kinds(batch: inspect.DumpedBatch) -> list[str]:
    """Attributes of a batch that differ from an ordinary one."""
    header = batch.header
    kinds = []
    if header.is_control:
        kinds.append(_marker_name(batch))
    elif header.is_transactional:
        kinds.append("transactional")
    if header.is_log_append_time:
        kinds.append("log append time")
    if header.has_delete_horizon:
        kinds.append("delete horizon")
    if batch.problem is not None:
        kinds.append("DAMAGED")
    return kinds


def _marker_name(batch: inspect.DumpedBatch) -> str:
    try:
        marker = batch.marker()
    except KafkaError:
        return "control"
    if marker is None:
        return "control"
    kind, coordinator_epoch = marker
    name = kind.name.lower().replace("_", " ")
    is_end = kind in (ControlType.ABORT, ControlType.COMMIT)
    return f"{name} (coordinator epoch {coordinator_epoch})" if is_end else name


def _print_batch(batch: inspect.DumpedBatch, row: list[Any]) -> list[str]:
    """Prints a batch and its records, one per line; returns the errors."""
    facts = [f"{name} {value}" for name, value in zip(_BATCH_COLUMNS, row, strict=True) if value != "-"]
    out = console()
    out.print(Text("batch: " + ", ".join(facts), style="bold red" if batch.problem else "bold"))
    if batch.header.is_control:
        return []
    try:
        for record in batch.records():
            key, value = bytes_text(record.key), bytes_text(record.value)
            headers = ", ".join(f"{name}={bytes_text(content)}" for name, content in record.headers)
            line = f"  {record.offset} {time_text(record.timestamp)} {key} {value}" + (
                f" [{headers}]" if headers else ""
            )
            sys.stdout.write(_clean(line) + "\n")
    except KafkaError as error:
        return [f"records at position {batch.position}: {error.detail}"] if batch.problem is None else []
    return []


def _clean(text: str) -> str:
    return safe_text(text) if sys.stdout.isatty() else text


# JSON lines


def _dump_segment_json(path: Path, records: bool) -> int:
    problems = 0
    for item in _walk(path):
        if isinstance(item, inspect.DumpedTail):
            problems += 1
            _print_line({"file": str(path), "position": item.position, "bytes": item.size, "problem": item.problem})
            continue
        document = _batch_json(path, item)
        if records and not item.header.is_control:
            try:
                document["records"] = list(_records_json(item.records()))
            except KafkaError as error:
                document["problem"] = document["problem"] or error.detail
        problems += document["problem"] is not None
        _print_line(document)
    return problems


def _batch_json(path: Path, batch: inspect.DumpedBatch) -> dict[str, Any]:
    header = batch.header
    return {
        "file": str(path),
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "bytes": header.size_bytes,
        "partition_leader_epoch": header.partition_leader_epoch,
        "codec": header.codec.name.lower(),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "log_append_time": header.is_log_append_time,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": _marker_name(batch) if header.is_control else None,
        "crc": f"{header.crc:08x}",
        "problem": batch.problem,
    }


def _records_json(records: list[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        yield {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": bytes_json(record.key),
            "value": bytes_json(record.value),
            "headers": [[name, bytes_json(value)] for name, value in record.headers],
        }


def _print_line(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")


# Helpers


def _print_title(path: Path, noun: str = "", number: int = 0, more: str = "") -> None:
    facts = [f"{number:,} {noun}"] if noun else []
    facts += [more] if more else []
    facts.append(size(path.stat().st_size))
    console().print(Text(f"{path}: ", style="bold") + Text(", ".join(facts)))


def _show_problem(path: Path, problem: str, as_json: bool) -> None:
    if as_json:
        _print_line({"file": str(path), "problem": problem})
    else:
        console().print(Text(f"{path}: damaged: {problem}", style="bold red"))


def _cell(name: str, value: Any) -> Any:
    if "timestamp" in name:
        return time_text(value)
    return "-" if isinstance(value, int) and value < 0 else value
