"""`ottla produce`: sends lines of a file or of standard input as records."""

import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    FileSizeColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from ottla.cli.output import CommandError, error_console, plural, print_json, size
from ottla.cli.session import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    check_partitions,
    client_settings,
    explain,
    find_topics,
    open_admin,
    parse_pairs,
    report_outages,
)
from ottla.client.blocking import Producer
from ottla.client.core.settings import ProducerConfig, build
from ottla.client.producer.speedups import Delivery
from ottla.clock import monotonic
from ottla.errors import KafkaError, OttlaError

PROGRESS_AFTER_S = 1.0
INTERACTIVE_TIMEOUTS = {"delivery.timeout.ms": "30000", "request.timeout.ms": "10000"}
"""Shorter timeouts than Kafka's defaults: a person is waiting for the result."""
CHECK_EVERY = 2_000
"""Records between two checks of the clock and of completed deliveries."""


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to write to.")],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read from FILE instead of standard input.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-k", metavar="TEXT", help="Split each line into key and value at TEXT; \\t is a tab."
        ),
    ] = None,
    headers: Annotated[
        list[str],
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header to add to every record; repeatable."),
    ] = [],  # noqa: B006
    null: Annotated[
        str | None, typer.Option("--null", metavar="TEXT", help="Send keys and values equal to TEXT as null.")
    ] = None,
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", metavar="N", help="Write to partition N, regardless of keys.")
    ] = None,
    acks: Annotated[
        str,
        typer.Option(
            "--acks", metavar="ACKS", help="Required acknowledgements: all in-sync replicas, 1 (the leader) or 0."
        ),
    ] = "all",
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME=VALUE", help="Set a producer setting by its Kafka name; repeatable."),
    ] = [],  # noqa: B006
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", metavar="", help="Do not print progress or a summary.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Send each line of the input as one record.

    On a terminal, end the input with Ctrl-D.

    \b
    Examples:
      echo hello | ottla produce greetings
      ottla produce orders --file orders.csv --compression zstd
      printf 'ann:1\\nbob:2\\n' | ottla produce scores --key-separator :
      ottla produce scores -k : --null NULL     # "ann:NULL" is a tombstone
    """
    record_headers = parse_headers(headers)
    separator = decode_separator(key_separator)
    given = {"acks": acks, "compression.type": compression}
    chosen = parse_pairs(settings, "--set")
    merged = client_settings(bootstrap, settings, ProducerConfig)
    for name in given:
        if name in chosen and chosen[name] != given[name]:
            raise OttlaError(f"{name} is set by an option and by --set to different values", "use only one of them")
    merged = INTERACTIVE_TIMEOUTS | merged | given
    build(ProducerConfig, merged, {})  # report invalid settings before anything is opened
    with _open_input(file) as source:
        with open_admin(bootstrap, settings) as admin:
            (description,) = find_topics(admin, [topic], f"create it with: ottla topic create {topic}")
        if partition is not None:
            check_partitions(description, [partition])
        report_outages()
        run = _Run(topic, partition, record_headers, separator, null.encode() if null is not None else None)
        run.produce(source, merged, show_progress=not quiet and not as_json)
    if as_json:
        print_json(run.summary())
    elif not quiet:
        run.print_summary()
    if run.interrupted:
        raise typer.Exit(130)
    if run.failed:
        assert run.first_error is not None
        what, hint = explain(run.first_error)
        raise CommandError(f"{plural(run.failed, 'record')} could not be written: {what}", hint)


class _Run:
    """One run of the command: sends the records and counts successes and failures."""

    def __init__(
        self,
        topic: str,
        partition: int | None,
        headers: tuple[tuple[str, bytes], ...],
        separator: bytes | None,
        null: bytes | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.headers = headers
        self.separator = separator
        self.null = null
        self.sent = 0
        self.failed = 0
        self.size_bytes = 0
        self.read_bytes = 0
        self.seconds = 0.0
        self.interrupted = False
        self.first_error: KafkaError | None = None
        self._waiting: deque[Delivery] = deque()

    def produce(self, source: BinaryIO, settings: dict[str, str], *, show_progress: bool) -> None:
        started = monotonic()
        progress = _Progress(source, started) if show_progress else None
        producer = Producer(settings)
        try:
            try:
                self._send_all(producer, source, progress)
            except KeyboardInterrupt:
                self.interrupted = True  # flush the lines read so far, do not read more
            finally:
                with contextlib.suppress(KafkaError):  # _collect() reports the outcome of each record
                    producer.flush()
        except KeyboardInterrupt:
            self.interrupted = True  # second Ctrl-C: do not even flush
        finally:
            producer.close(timeout_ms=0)
            self._collect(wait=True)
            self.seconds = monotonic() - started
            if progress is not None:
                progress.stop()

    def _send_all(self, producer: Producer, source: BinaryIO, progress: "_Progress | None") -> None:
        for number, line in enumerate(_lines(source), 1):
            key, value = self._split(number, line)
            self._waiting.append(
                producer.send(self.topic, value, key=key, partition=self.partition, headers=self.headers)
            )
            self.sent += 1
            self.read_bytes += len(line) + 1
            self.size_bytes += (len(key) if key else 0) + (len(value) if value else 0)
            if not number % CHECK_EVERY:
                self._collect(wait=False)
                if progress is not None:
                    progress.update(self.sent, self.read_bytes)

    def _split(self, number: int, line: bytes) -> tuple[bytes | None, bytes | None]:
        key: bytes | None = None
        value: bytes | None = line
        if self.separator is not None:
            before, found, after = line.partition(self.separator)
            if not found:
                shown = self.separator.decode(errors="backslashreplace")
                raise OttlaError(f"line {number} has no key separator {shown!r}", "the lines before it were written")
            key, value = before, after
        return (None if key == self.null else key), (None if value == self.null else value)

    def _collect(self, *, wait: bool) -> None:
        """Removes completed deliveries from the queue and counts the failed ones."""
        waiting = self._waiting
        while waiting and (wait or waiting[0].done()):
            delivery = waiting.popleft()
            error = _error_of(delivery)
            if error is not None:
                self.failed += 1
                self.first_error = self.first_error or error

    def summary(self) -> dict[str, object]:
        stored = self.sent - self.failed
        return {
            "topic": self.topic,
            "records": stored,
            "failed": self.failed,
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "records_per_second": round(stored / self.seconds) if self.seconds else None,
        }

    def print_summary(self) -> None:
        stored = self.sent - self.failed
        rate = ""
        if self.seconds >= 0.5 and stored >= CHECK_EVERY:  # meaningless for typed input
            rate = f", {stored / self.seconds:,.0f} records/s, {size(self.size_bytes / self.seconds)}/s"
        error_console().print(
            f"wrote {plural(stored, 'record')} to {self.topic}, {size(self.size_bytes)} in {self.seconds:.2f} s{rate}",
            style="dim",
        )


class _Progress:
    """A progress bar on standard error, shown on a terminal for inputs that take more than a second."""

    def __init__(self, source: BinaryIO, started: float) -> None:
        self._started = started
        self._progress: Progress | None = None
        self._wanted = sys.stderr.isatty() and not source.isatty()
        self._total = _size_of(source)

    def update(self, records: int, read_bytes: int) -> None:
        elapsed = monotonic() - self._started
        if not self._wanted or elapsed < PROGRESS_AFTER_S:
            return
        if self._progress is None:
            first, size = (BarColumn(), DownloadColumn()) if self._total else (SpinnerColumn(), FileSizeColumn())
            self._progress = Progress(
                first,
                TextColumn("{task.description}"),
                size,
                TimeElapsedColumn(),
                console=error_console(),
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task("", total=self._total)
        rate = f"{records:,} records, {records / elapsed:,.0f}/s"
        self._progress.update(self._task, completed=read_bytes, description=rate)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def _open_input(file: Path | None) -> BinaryIO:
    if file is not None:
        return open(file, "rb")
    if sys.stdin.isatty():
        error_console().print("Enter one record per line. End with Ctrl-D.", style="dim")
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


def _size_of(source: BinaryIO) -> int | None:
    try:
        return os.fstat(source.fileno()).st_size or None
    except (OSError, ValueError):
        return None


def _lines(source: BinaryIO) -> Iterator[bytes]:
    for line in source:
        yield line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")


def parse_headers(headers: list[str]) -> tuple[tuple[str, bytes], ...]:
    """
    >>> parse_headers(["source=web", "empty="])
    (('source', b'web'), ('empty', b''))
    """
    parsed = []
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise OttlaError(f"--header {header!r} is not NAME=VALUE", "write --header NAME=VALUE")
        parsed.append((name, value.encode()))
    return tuple(parsed)


def decode_separator(text: str | None) -> bytes | None:
    """The separator as bytes. The text \\t means a tab, which is hard to pass in a shell.

    >>> decode_separator("\\\\t")
    b'\\t'
    """
    if text is None:
        return None
    if not text:
        raise OttlaError(
            "--key-separator is empty", "pass the text between key and value, for example --key-separator :"
        )
    return text.replace("\\t", "\t").encode()


def _error_of(delivery: Delivery) -> KafkaError | None:
    """Waits for a delivery and returns its error, or None on success."""
    try:
        delivery.result()
    except KafkaError as error:
        return error
    return None
