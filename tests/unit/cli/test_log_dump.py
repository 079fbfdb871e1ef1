"""`ottla log dump`: intact and damaged log files, as text and as JSON."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.main import main
from ottla.cli.output import bytes_json, bytes_text, count, plural, safe_text, size, time_text
from ottla.log.segments.index import OffsetIndex, TimeIndex
from ottla.log.segments.transaction_index import AbortedTransaction, encode_entries
from ottla.protocol.records.record_batch import Codec, build_batch, control_batch, read_header, stamp
from tests.support.wire.damaged import damaged

NAME = "00000000000000000100"
TIME = 1_700_000_000_000


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["log", "dump", *map(str, words)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Three batches: plain, part of a transaction, and the transaction's end."""
    path = tmp_path / f"{NAME}.log"
    plain = build_batch(
        [(TIME, b"ann", b"1", (("h", b"x"),)), (TIME + 1, None, b"\xff", ())],
        base_offset=100,
        codec=Codec.ZSTD,
        partition_leader_epoch=4,
    )
    open_transaction = build_batch(
        [(TIME + 2, b"bob", None, ())],
        base_offset=102,
        producer_id=7,
        producer_epoch=1,
        base_sequence=5,
        transactional=True,
        partition_leader_epoch=4,
    )
    end = control_batch(
        commit=False,
        producer_id=7,
        producer_epoch=1,
        coordinator_epoch=9,
        timestamp=TIME + 3,
        base_offset=103,
        partition_leader_epoch=4,
    )
    path.write_bytes(plain + open_transaction + end)
    return path


def test_batches_are_printed_as_a_table(dump: Any, segment: Path) -> None:
    status, out, _ = dump(segment)
    lines = out.splitlines()
    assert status == 0
    assert lines[0].startswith(f"{segment}: 3 batches, 4 records, ")
    assert lines[1].split()[:3] == ["POSITION", "OFFSETS", "RECORDS"]
    first, second, third = (line.split() for line in lines[2:])
    assert first[1:3] == ["100-101", "2"]
    assert "zstd" in first
    assert "2023-11-14T22:13:20.001Z" in first
    assert second[1] == "102"
    assert "7/1" in second
    assert second[-1] == "transactional"
    assert " ".join(third).endswith("7/1 - abort (coordinator epoch 9)")


def test_records_are_printed_one_per_line(dump: Any, segment: Path) -> None:
    _, out, _ = dump(segment, "--records")
    assert [line for line in out.splitlines() if line.startswith("  ")] == [
        "  100 2023-11-14T22:13:20.000Z ann 1 [h=x]",
        "  101 2023-11-14T22:13:20.001Z null \\xff",
        "  102 2023-11-14T22:13:20.002Z bob null",
    ]


def test_json_has_one_line_per_batch(dump: Any, segment: Path) -> None:
    status, out, _ = dump(segment, "--records", "--json")
    first, second, third = map(json.loads, out.splitlines())
    assert status == 0
    assert (first["base_offset"], first["record_count"], first["codec"]) == (100, 2, "zstd")
    assert first["records"][0] == {
        "offset": 100,
        "timestamp": TIME,
        "key": "ann",
        "value": "1",
        "headers": [["h", "x"]],
    }
    assert first["records"][1]["value"] == {"base64": "/w=="}
    assert second["transactional"]
    assert second["records"][0]["value"] is None
    assert third["control"] == "abort (coordinator epoch 9)"
    assert "records" not in third


def test_an_incomplete_tail_is_reported_and_the_rest_is_read(dump: Any, segment: Path) -> None:
    segment.write_bytes(segment.read_bytes()[:-5])
    status, out, err = dump(segment)
    assert status == 1
    assert "2 batches" in out
    assert "damaged: 73 bytes at position" in out
    assert "incomplete" in out
    assert err.startswith("ottla: found 1 damaged place")
    tail = json.loads(dump(segment, "--json")[1].splitlines()[-1])
    assert tail["bytes"] == 73
    assert "incomplete" in tail["problem"]


def test_a_flipped_bit_is_reported(dump: Any, segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[90] ^= 1
    segment.write_bytes(data)
    status, out, _ = dump(segment)
    assert status == 1
    assert "DAMAGED" in out
    assert "checksum" in out
    assert "checksum" in json.loads(dump(segment, "--json")[1].splitlines()[0])["problem"]
    assert dump(segment, "--records")[0] == 1


@pytest.mark.parametrize("codec", Codec)
def test_records_that_cannot_be_read_are_reported(dump: Any, tmp_path: Path, codec: Codec) -> None:
    """Their checksum is correct: an older version stored what its clients had sent."""
    path = tmp_path / f"{0:020}.log"
    offset, data = 0, b""
    for bad in damaged(codec).values():
        stored = bytearray(bad)
        stamp(stored, offset, 0)
        data += stored
        offset = read_header(stored).next_offset
    path.write_bytes(data)
    count = len(damaged(codec))
    for options in ((), ("--records",), ("--json",), ("--json", "--records")):
        status, out, err = dump(path, *options)
        assert status == 1
        assert "Traceback" not in out + err
        assert err.startswith(f"ottla: found {count} damaged places"), options
    assert "record 0: a length is out of bounds" in out


def test_decreasing_offsets_are_reported(dump: Any, segment: Path) -> None:
    """The CRC does not cover offsets."""
    wrong = segment.with_name("00000000000000000101.log")
    shutil.copy(segment, wrong)
    status, out, _ = dump(wrong)
    assert status == 1
    assert "base offset 100 is too low, expected at least 101" in out


def test_an_empty_segment_is_not_damaged(dump: Any, tmp_path: Path) -> None:
    empty = tmp_path / f"{NAME}.log"
    empty.touch()
    assert dump(empty)[0] == 0
    assert dump(empty)[1] == f"{empty}: 0 batches, 0 records, 0 B\n"
    assert dump(empty, "--json") == (0, "", "")


def test_indexes_are_printed_as_text_and_json(dump: Any, tmp_path: Path) -> None:
    offsets, times = OffsetIndex(), TimeIndex()
    offsets.append(20, 4_096)
    times.append(TIME, 20)
    (tmp_path / f"{NAME}.index").write_bytes(offsets.to_bytes() + bytes(8 * 10))  # Kafka preallocates index files
    (tmp_path / f"{NAME}.timeindex").write_bytes(times.to_bytes())
    aborted = encode_entries([AbortedTransaction(7, 102, 103, 104)])
    (tmp_path / f"{NAME}.txnindex").write_bytes(aborted)
    status, out, _ = dump(tmp_path)
    assert status == 0
    assert [line.split() for line in out.splitlines() if line and "/" not in line] == [
        ["OFFSET", "POSITION"],
        ["120", "4096"],
        ["TIMESTAMP", "OFFSET"],
        ["2023-11-14T22:13:20.000Z", "120"],
        ["PRODUCER", "ID", "FIRST", "OFFSET", "LAST", "OFFSET", "LAST", "STABLE", "OFFSET"],
        ["7", "102", "103", "104"],
    ]
    lines = [json.loads(line) for line in dump(tmp_path, "--json")[1].splitlines()]
    assert lines[0] == {"file": str(tmp_path / f"{NAME}.index"), "offset": 120, "position": 4096}
    assert lines[2]["last_stable_offset"] == 104


def test_a_damaged_snapshot_is_named(dump: Any, tmp_path: Path) -> None:
    path = tmp_path / f"{NAME}.snapshot"
    path.write_bytes(b"nonsense nonsense nonsense")
    status, out, err = dump(path)
    assert status == 1
    assert out.startswith(f"{path}: damaged: ")
    assert err.startswith("ottla: found 1 damaged place")
    assert "problem" in json.loads(dump(path, "--json")[1])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nosuch.log", "does not exist (pass a segment file or a partition directory)"),
        ("notes.txt", "is not a log file (log files end in .log, .index, .timeindex, .snapshot, .txnindex)"),
        ("empty", "contains no log files (their names end in .log, .index, .timeindex, .snapshot, .txnindex)"),
    ],
)
def test_other_files_are_rejected(dump: Any, tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    status, out, err = dump(tmp_path / path)
    assert (status, out) == (2, "")
    assert err.strip() == f"ottla: {tmp_path / path} {message}"


# Formats of numbers, times and bytes


def test_numbers_and_times_are_formatted_for_people() -> None:
    assert [size(n) for n in (0, 999, 1_000, 1_234_567, 5 * 10**12)] == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 TB"]
    assert count(1_000_000) == "1,000,000"
    assert (plural(0, "record"), plural(1, "record")) == ("0 records", "1 record")
    assert (time_text(-1), time_text(0)) == ("-", "1970-01-01T00:00:00.000Z")
    assert time_text(2**62) == str(2**62), "beyond year 9999"


def test_arbitrary_bytes_are_safe_for_terminals_and_json() -> None:
    assert bytes_text(None) == "null"
    assert bytes_text(b"") == ""
    assert safe_text("\x1b]0;title\x07 a\tb") == "\\x1b]0;title\\x07 a\tb"
    for value in (None, b"", b"text", bytes(range(256))):
        json.loads(json.dumps(bytes_json(value)))
