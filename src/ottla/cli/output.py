"""Output of the commands: tables for people, JSON for programs, one line per error, number and time formats."""

import base64
import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ottla.errors import OttlaError

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells expect it."""

Row = Sequence[Any]


class CommandError(OttlaError):
    """The command line is valid, but the command failed: exit status 1 instead of 2."""


def console() -> Console:
    """Standard output: coloured on a terminal, plain text in a pipe."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=True)


def error_console() -> Console:
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def logs_from(logger_name: str, level: int) -> Iterator[None]:
    """Hides less important messages of a logger, where lost connections are expected."""
    logger = logging.getLogger(logger_name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def print_error(message: str, hint: str = "") -> None:
    """One line on standard error: `ottla: what is wrong (how to fix it)`."""
    line = Text.assemble(("ottla: ", "bold red"), " ".join(message.split()))
    if hint:
        line.append(f" ({' '.join(hint.split())})", style="dim")
    error_console().print(line)


def print_json(value: Any) -> None:
    """One JSON document."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Row], *, right: Iterable[str] = ()) -> None:
    """Prints a table: with rules on a terminal, as aligned text in a pipe. `right` names the right-aligned columns."""
    numeric = set(right)
    out = console()
    if out.is_terminal:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column in columns:
            table.add_column(
                column, justify="right" if column in numeric else "left", no_wrap=column in numeric, overflow="fold"
            )
        for row in rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(show(cell)) for cell in row))
        Console(file=sys.stdout, highlight=False).print(table)
        return
    for line in plain_table(columns, rows, numeric):
        sys.stdout.write(line + "\n")


def plain_table(columns: Sequence[str], rows: Iterable[Row], numeric: set[str]) -> list[str]:
    """
    >>> plain_table(["topic", "records"], [["orders", 12], ["x", 1_000]], {"records"})
    ['TOPIC   RECORDS', 'orders       12', 'x          1000']
    """
    cells = [[column.upper() for column in columns], *([str(show(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def print_facts(facts: Mapping[str, Any]) -> None:
    """Prints named values, one per line."""
    width = max(len(name) for name in facts)
    out = console()
    for name, value in facts.items():
        out.print(Text(f"{name.ljust(width)}  ", style="dim"), Text(show(value)), sep="", end="\n")


def show(value: Any) -> str:
    """A value as text for people."""
    if value is None:
        return "-"
    if isinstance(value, Text):
        return value.plain
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(str(item) for item in value) or "-"
    return str(value)


def count(number: int) -> str:
    """
    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """
    >>> plural(1, "record"), plural(2000, "record")
    ('1 record', '2,000 records')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(number: float) -> str:
    """
    >>> size(999), size(1_500), size(12_345_678)
    ('999 B', '1.5 kB', '12.3 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number) < 1000 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("unreachable")


def time_text(timestamp_ms: int) -> str:
    """A record's timestamp in UTC; `-` if it has none.

    >>> time_text(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # beyond year 9999
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


# Bytes


def bytes_text(value: bytes | None, *, null: str = "null") -> str:
    """Bytes as text: decoded if they are UTF-8, else with bytes outside printable ASCII as \\xNN.

    >>> bytes_text("žluť".encode()), bytes_text(b"\\xff\\x00ok")
    ('žluť', '\\\\xff\\\\x00ok')
    """
    if value is None:
        return null
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "".join(chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in value)


def safe_text(text: str) -> str:
    """Escapes control characters, so that data cannot move the cursor or change the colours of a terminal.

    >>> safe_text("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\t\n" else f"\\x{ord(c):02x}" for c in text)


def bytes_json(value: bytes | None) -> Any:
    """Bytes for JSON: a string if they are UTF-8, else `{"base64": …}`.

    >>> bytes_json(b"ok"), bytes_json(b"\\xff")
    ('ok', {'base64': '/w=='})
    """
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


# Streams


def prepare_streams() -> None:
    """Escapes characters that the terminal's encoding lacks, instead of raising UnicodeEncodeError."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """After a broken pipe: discards buffered output, so that the interpreter does not report it at exit."""
    try:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)
    except (OSError, ValueError):  # standard output is not a real file, as under pytest
        pass


def duration(seconds: float, *, whole: bool = False) -> str:
    """A duration in its two largest units. `whole` drops fractions of a second.

    >>> duration(0.0123), duration(3.21), duration(75), duration(7384), duration(200_000)
    ('12 ms', '3.2 s', '1 min 15 s', '2 h 3 min', '2 d 7 h')
    >>> duration(3.21, whole=True)
    '3 s'
    """
    if whole and seconds < 60:
        return f"{int(seconds)} s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    total = int(seconds)
    for unit, size, smaller, smaller_size in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if total >= size:
            rest = total % size // smaller_size
            return f"{total // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError("unreachable")
