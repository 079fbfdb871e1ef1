"""Files of offsets, written by `ottla group reset-offsets --export` and read by `--from-file`."""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

from ottla.errors import OttlaError
from ottla.types import TopicPartition


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
        return {TopicPartition(str(row["topic"]), _number(row["partition"])): _number(row["offset"]) for row in rows}
    except (ValueError, KeyError, TypeError):
        raise OttlaError(
            f"{name} is not valid JSON for offsets", 'write [{"topic": "orders", "partition": 0, "offset": 42}, …]'
        ) from None


def _read_lines(text: str, name: str) -> dict[TopicPartition, int]:
    read = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or cells[0].startswith("#") or (number == 1 and cells == ["topic", "partition", "offset"]):
            continue
        try:
            topic, partition, offset = cells
            read[TopicPartition(topic, _number(partition))] = _number(offset)
        except ValueError:
            raise OttlaError(
                f"{name} line {number} is not valid: {','.join(row)}", "write topic,partition,offset"
            ) from None
    return read


def _number(value: Any) -> int:
    number = int(value)
    if number < 0:
        raise ValueError(value)
    return number
