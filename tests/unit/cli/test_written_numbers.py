"""Numbers that users write in options and files: whole, in ASCII digits and in range, or an error with the fix."""

import doctest
import json
from pathlib import Path
from typing import Any

import pytest

from ottla.cli import session
from ottla.cli.cluster.moving import _merged, _read_file
from ottla.cli.consume import command as consume
from ottla.cli.consume.command import Start, parse_start
from ottla.cli.group import reset
from ottla.cli.group.offset_files import read_offsets
from ottla.cli.group.reset import parse_topic
from ottla.cli.quota import parse_quota
from ottla.cli.session import parse_time
from ottla.cli.verify.command import parse_duration
from ottla.errors import OttlaError
from ottla.types import INT32_MAX, INT64_MAX, TopicPartition

ARABIC = "١٢"
"""The number 12, which Python's int() and \\d accept."""


@pytest.mark.parametrize("module", [session, consume, reset])
def test_the_examples_in_docstrings_work(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


# The plan of `ottla cluster reassign --file`


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"topic": "a", "partition": 1.9, "replicas": [1]}, "partition is 1.9"),
        ({"topic": "a", "partition": True, "replicas": [1]}, "partition is true"),
        ({"topic": "a", "partition": "1", "replicas": [1]}, 'partition is "1"'),
        ({"topic": "a", "partition": -1, "replicas": [1]}, "partition is -1"),
        ({"topic": "a", "partition": INT32_MAX + 1, "replicas": [1]}, f"partition is {INT32_MAX + 1}"),
        ({"topic": "a", "partition": 1, "replicas": [1, 2.5]}, "broker is 2.5"),
        ({"topic": "a", "partition": 1, "replicas": [1, -2]}, "broker is -2"),
        ({"topic": "a", "partition": 1, "replicas": ["1"]}, 'broker is "1"'),
        ({"topic": "a", "partition": 1, "replicas": "12"}, 'replicas is "12"'),
        ({"topic": "a", "partition": 1, "replicas": {"1": 2}}, 'replicas is {"1": 2}'),
        ({"topic": "a", "partition": 1, "replicas": []}, "replicas is []"),
        ({"topic": "a", "partition": 1}, "replicas is missing"),
        ({"topic": 7, "partition": 1, "replicas": [1]}, "topic is 7"),
        ({"topic": "", "partition": 1, "replicas": [1]}, 'topic is ""'),
        ("a", 'the entry is "a"'),
    ],
)
def test_a_plan_with_a_wrong_value_moves_nothing(tmp_path: Path, entry: Any, message: str) -> None:
    file = tmp_path / "moves.json"
    file.write_text(json.dumps({"partitions": [{"topic": "a", "partition": 0, "replicas": [1]}, entry]}))
    with pytest.raises(OttlaError) as caught:
        _read_file(file)
    assert caught.value.message == f"{file}, entry 2: {message}"
    assert caught.value.hint


@pytest.mark.parametrize("content", ['{"partitions": {"a": 1}}', '{"partitions": "a"}', '"partitions"'])
def test_a_plan_is_a_list_of_entries(tmp_path: Path, content: str) -> None:
    file = tmp_path / "moves.json"
    file.write_text(content)
    with pytest.raises(OttlaError, match="is not a list of moves"):
        _read_file(file)


def test_a_plan_cannot_move_a_partition_twice(tmp_path: Path) -> None:
    file = tmp_path / "moves.json"
    entries = [{"topic": "a", "partition": 0, "replicas": [broker]} for broker in (1, 2)]
    file.write_text(json.dumps({"partitions": entries}))
    with pytest.raises(OttlaError) as caught:
        _read_file(file)
    assert caught.value.message == f"{file}, entry 2: a-0 is moved twice"


def test_a_partition_cannot_be_moved_by_the_plan_and_by_an_argument() -> None:
    assert _merged({TopicPartition("a", 0): (1,)}, {TopicPartition("a", 1): (2,)}) == {
        TopicPartition("a", 0): (1,),
        TopicPartition("a", 1): (2,),
    }
    with pytest.raises(OttlaError, match="a-0 is moved twice"):
        _merged({TopicPartition("a", 0): (1,)}, {TopicPartition("a", 0): (2,)})


# Files of offsets


@pytest.mark.parametrize("partition", [1.9, True, "1", "1_0", -1, INT32_MAX + 1, None])
def test_the_partition_in_an_offsets_file_is_a_whole_number(tmp_path: Path, partition: Any) -> None:
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps([{"topic": "a", "partition": partition, "offset": 1}]))
    with pytest.raises(OttlaError) as caught:
        read_offsets(str(file))
    assert caught.value.message == f"offsets.json, entry 1: partition is {json.dumps(partition)}"
    assert caught.value.hint == f"write a whole number from 0 to {INT32_MAX}"


@pytest.mark.parametrize("offset", [1.9, True, "1_000", -1, INT64_MAX + 1])
def test_the_offset_in_an_offsets_file_is_a_whole_number(tmp_path: Path, offset: Any) -> None:
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps([{"topic": "a", "partition": 0, "offset": offset}]))
    with pytest.raises(OttlaError) as caught:
        read_offsets(str(file))
    assert caught.value.message == f"offsets.json, entry 1: offset is {json.dumps(offset)}"
    assert caught.value.hint == f"write a whole number from 0 to {INT64_MAX}"


@pytest.mark.parametrize(
    "line", ["a,1_0,5", "a,0,1_000", "a,0,1.9", f"a,{ARABIC},5", f"a,0,{INT64_MAX + 1}", f"a,{INT32_MAX + 1},0", ",0,5"]
)
def test_a_line_of_an_offsets_file_contains_whole_numbers(tmp_path: Path, line: str) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(f"topic,partition,offset\n{line}\n", encoding="utf-8")
    with pytest.raises(OttlaError) as caught:
        read_offsets(str(file))
    assert caught.value.message == f"offsets.csv line 2 is not valid: {line}"


@pytest.mark.parametrize(
    "content", ["a,0,5\na,0,6\n", json.dumps([{"topic": "a", "partition": 0, "offset": offset} for offset in (5, 6)])]
)
def test_a_partition_has_one_offset_in_a_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "offsets"
    file.write_text(content)
    with pytest.raises(OttlaError, match=r"offsets contains a-0 twice"):
        read_offsets(str(file))


def test_valid_offsets_are_read(tmp_path: Path) -> None:
    file = tmp_path / "offsets"
    wanted = {TopicPartition("a", 0): 5, TopicPartition("a", 1): INT64_MAX}
    file.write_text(f"a, 0 ,5\na,1,{INT64_MAX}\n")
    assert read_offsets(str(file)) == wanted
    entries = [{"topic": topic, "partition": partition, "offset": o} for (topic, partition), o in wanted.items()]
    file.write_text(json.dumps({"partitions": entries}))
    assert read_offsets(str(file)) == wanted


# Options


@pytest.mark.parametrize("text", ["a:1_0", f"a:{ARABIC}", "a:-1", "a:", "a:1,", f"a:{INT32_MAX + 1}", ":0", "a:1.5"])
def test_the_partitions_of_a_topic_are_whole_numbers(text: str) -> None:
    with pytest.raises(OttlaError, match="is not valid") as caught:
        parse_topic(text)
    assert str(INT32_MAX) in caught.value.hint


@pytest.mark.parametrize("text", [ARABIC, f"-{ARABIC}", "9" * 5000, "-" + "9" * 5000, str(INT64_MAX + 1), "1_0", "+5"])
def test_a_start_offset_is_a_number_in_range(text: str) -> None:
    with pytest.raises(OttlaError, match="is not a valid start position"):
        parse_start(text)


def test_the_largest_start_offset_is_accepted() -> None:
    assert parse_start(str(INT64_MAX)) == Start("offset", INT64_MAX)
    assert parse_start(f"-{INT64_MAX}") == Start("last", INT64_MAX)


@pytest.mark.parametrize("text", [ARABIC, f"@{ARABIC}", "9" * 5000, f"@{INT64_MAX + 1}", "1_0"])
def test_a_time_in_milliseconds_is_a_number_in_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"out of range|[Ii]soformat|must be in"):
        parse_time(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("producer_byte_rate", f"{ARABIC}MB/s"),
        ("request_percentage", f"{ARABIC}%"),
        ("request_percentage", "9" * 400),
        ("producer_byte_rate", "9" * 400),
    ],
)
def test_a_quota_is_a_finite_number_in_ascii_digits(name: str, text: str) -> None:
    with pytest.raises(OttlaError, match=f"invalid value .* for {name}"):
        parse_quota(name, text)


@pytest.mark.parametrize("text", [f"{ARABIC}s", f"{ARABIC}m", "9" * 400, "9" * 5000 + "h"])
def test_a_time_to_run_is_a_finite_number_in_ascii_digits(text: str) -> None:
    with pytest.raises(OttlaError, match="is not a time"):
        parse_duration(text)
