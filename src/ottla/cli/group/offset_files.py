"""Files of offsets, written by `ottla group reset-offsets --export` and read by `--from-file`."""

import csv
import io
import json
import os
from pathlib import Path

from ottla.checks import unsigned_from_text
from ottla.cli.json_entries import Entry
from ottla.errors import OttlaError
from ottla.types import INT32_MAX, INT64_MAX, TopicPartition

EXAMPLE_ENTRY = '{"topic": "orders", "partition": 0, "offset": 42}'


def write_offsets(path: str, offsets: dict[TopicPartition, int]) -> None:
    """Writes topic,partition,offset lines, or JSON if the name ends in .json."""
    rows = [(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())]
    if path.lower().endswith(".json"):
        text = json.dumps([{"topic": t, "partition": p, "offset": o} for t, p, o in rows], indent=2) + "\n"
    else:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([("topic", "partition", "offset"), *rows])
        text = out.getvalue()
    Path(path).write_text(text, encoding="utf-8")


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """Reads a file written by --export, or any topic,partition,offset lines."""
    name = os.path.basename(path)
    text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    read = _read_json(text, name) if text.lstrip()[:1] in ("[", "{") else _read_lines(text, name)
    if not read:
        raise OttlaError(f"{name} contains no offsets", "write topic,partition,offset lines")
    return read


def _read_json(text: str, name: str) -> dict[TopicPartition, int]:
    try:
        rows = json.loads(text)
        rows = rows["partitions"] if isinstance(rows, dict) else rows
        if not isinstance(rows, list):
            raise TypeError(rows)
    except (ValueError, KeyError, TypeError):
        raise OttlaError(f"{name} is not valid JSON for offsets", f"write [{EXAMPLE_ENTRY}, …]") from None
    read: dict[TopicPartition, int] = {}
    for number, fields in enumerate(rows, start=1):
        entry = Entry(f"{name}, entry {number}", fields, EXAMPLE_ENTRY)
        partition = TopicPartition(entry.text("topic"), entry.number("partition", at_most=INT32_MAX))
        _add(read, partition, entry.number("offset", at_most=INT64_MAX), name)
    return read


def _read_lines(text: str, name: str) -> dict[TopicPartition, int]:
    read: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or cells[0].startswith("#") or (number == 1 and cells == ["topic", "partition", "offset"]):
            continue
        topic, *numbers = cells
        partition, offset = map(unsigned_from_text, numbers) if len(numbers) == 2 else (None, None)
        if not topic or partition is None or offset is None or partition > INT32_MAX or offset > INT64_MAX:
            raise OttlaError(
                f"{name} line {number} is not valid: {','.join(row)}",
                f"write topic,partition,offset with a partition up to {INT32_MAX} and an offset up to {INT64_MAX}",
            )
        _add(read, TopicPartition(topic, partition), offset, name)
    return read


def _add(read: dict[TopicPartition, int], partition: TopicPartition, offset: int, name: str) -> None:
    if partition in read:
        raise OttlaError(f"{name} contains {partition} twice", "write one offset for each partition")
    read[partition] = offset
