"""Nanoseconds per record to build, read and check batches: compiled and pure Python kernels, aiokafka, kafka-python.

Checking a batch is what a broker does with the records of a producer: it checks every length, offset and timestamp.

Run it with `python -m bench.kernels [--repeat N]`. Each round measures every contender once, so that a slow phase of
the machine affects all of them; the table shows the best and the median round.
"""

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from ottla.protocol.records import _pure, _speedups
from ottla.protocol.records.batch_inspection import inspect_records
from ottla.protocol.records.record_batch import BatchHeader, Codec, Record, build_batch

NOW = 1_700_000_000_000
BATCH_SIZES = (100, 1000)
VALUE_BYTES = 100
ROUND_SECONDS = 0.02


class Row(NamedTuple):
    """The results of one contender for one task."""

    work: str
    contender: str
    unit: str
    best_ns: float
    median_ns: float


class Subject(NamedTuple):
    """A function to measure; one call does `units` units of work."""

    work: str
    contender: str
    unit: str
    units: int
    function: Callable[[], Any]


def sample_rows(count: int) -> list[tuple[int, bytes, bytes, list[Any]]]:
    source = random.Random(count)
    return [(NOW + n, b"key-%05d" % n, source.randbytes(VALUE_BYTES), []) for n in range(count)]


def subjects() -> Iterator[Subject]:
    for count in BATCH_SIZES:
        rows = sample_rows(count)
        batch = build_batch(rows)
        build, read, check = f"build a batch of {count}", f"read a batch of {count}", f"check a batch of {count}"
        for name, kernels in our_kernels():
            yield Subject(build, name, "record", count, our_build(kernels, rows))
            yield Subject(read, name, "record", count, our_read(kernels, batch))
            yield Subject(check, name, "record", count, our_check(kernels, batch, count))
        for name, library in other_libraries():
            yield Subject(build, name, "record", count, their_build(library, rows))
            yield Subject(read, name, "record", count, their_read(library, batch))
    rows = sample_rows(1000)
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        batch = build_batch([(t, k, v.hex().encode()[:VALUE_BYTES], h) for t, k, v, h in rows], codec=codec)
        work = f"decompress and check a batch of 1000, {codec.name.lower()}"
        yield Subject(work, "ottla", "record", 1000, partial(inspect_records, batch))
    batch = build_batch(sample_rows(100))
    for name, kernels in our_kernels():
        yield Subject("read a header", name, "batch", 1, our_header(kernels, batch, None))
        yield Subject("header and checksum, 12 kB", name, "batch", 1, our_header(kernels, batch, _speedups.crc32c))
    for name, library in other_libraries():
        yield Subject("header and checksum, 12 kB", name, "batch", 1, their_check(library, batch))


def our_kernels() -> list[tuple[str, Any]]:
    if not _speedups.NATIVE:
        return [("ottla, pure", _pure)]
    from ottla.protocol.records import _kernels

    return [("ottla", _kernels), ("ottla, pure", _pure)]


def other_libraries() -> list[tuple[str, Any]]:
    import aiokafka.record.default_records
    import kafka.record.default_records

    # kafka-python computes checksums in Python unless the crc32c package is installed.
    with_crc = "" if find_spec("crc32c") else ", no crc32c"
    return [
        ("aiokafka", aiokafka.record.default_records),
        (f"kafka-python{with_crc}", kafka.record.default_records),
    ]


def our_build(kernels: Any, rows: list[Any]) -> Callable[[], Any]:
    encode, crc32c = kernels.encode_batch, _speedups.crc32c
    return lambda: encode(rows, 0, -1, 0, -1, -1, -1, crc32c)


def our_read(kernels: Any, batch: bytes) -> Callable[[], Any]:
    unpack, decode = kernels.unpack_header, kernels.decode_records

    def read() -> list[Record]:
        header = unpack(BatchHeader, batch, 0)
        return decode(  # type: ignore[no-any-return]
            Record,
            batch,
            61,
            len(batch),
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            None,
        )

    return read


def our_check(kernels: Any, batch: bytes, count: int) -> Callable[[], Any]:
    inspect = kernels.inspect_records
    return lambda: inspect(batch, 61, len(batch), count, NOW)


def our_header(kernels: Any, batch: bytes, crc32c: Callable[..., int] | None) -> Callable[[], Any]:
    unpack = kernels.unpack_header
    return lambda: unpack(BatchHeader, batch, 0, crc32c)


def their_build(library: Any, rows: list[Any]) -> Callable[[], Any]:
    def build() -> Any:
        builder = library.DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 30,
        )
        append = builder.append
        for index, (timestamp, key, value, headers) in enumerate(rows):
            append(index, timestamp, key, value, headers)
        return builder.build()

    return build


def their_read(library: Any, batch: bytes) -> Callable[[], Any]:
    def read() -> list[tuple[Any, ...]]:
        found = library.DefaultRecordBatch(batch)
        return [(item.offset, item.timestamp, item.key, item.value, item.headers) for item in found]

    return read


def their_check(library: Any, batch: bytes) -> Callable[[], Any]:
    return lambda: library.DefaultRecordBatch(batch).validate_crc()


def seconds_taken(function: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        function()
    return time.perf_counter() - start


def run(repeat: int = 7) -> list[Row]:
    """Measures every contender `repeat` times, in turn."""
    contenders = list(subjects())
    times = [max(1, int(ROUND_SECONDS / seconds_taken(subject.function, 3) * 3)) for subject in contenders]
    measured: list[list[float]] = [[] for _ in contenders]
    for _ in range(repeat):
        for subject, count, samples in zip(contenders, times, measured, strict=True):
            gc.collect()
            samples.append(seconds_taken(subject.function, count) / count / subject.units * 1e9)
    rows = [
        Row(subject.work, subject.contender, subject.unit, min(samples), statistics.median(samples))
        for subject, samples in zip(contenders, measured, strict=True)
    ]
    return sorted(rows, key=lambda row: row.work)


def show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Record kernels, 100 B values", title_justify="left")
    for heading in ("work", "by", "per", "best ns", "median ns", "times the first"):
        table.add_column(heading, justify="right" if "ns" in heading or "times" in heading else "left")
    work = ""
    reference = 1.0
    for row in rows:
        if row.work != work:
            if work:
                table.add_section()
            reference = row.best_ns
        name = row.work if row.work != work else ""
        work = row.work
        ratio = f"{row.best_ns / reference:.1f}"
        table.add_row(name, row.contender, row.unit, f"{row.best_ns:,.0f}", f"{row.median_ns:,.0f}", ratio)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7, help="rounds (default 7)")
    show(run(parser.parse_args().repeat))


if __name__ == "__main__":
    main()
