"""Offsets in a file: members of a group on one host may share it, and may crash at any moment."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Consumer, FileOffsetStore, OttlaError, Producer, StoredOffsets, TopicPartition
from ottla.clock import monotonic
from tests.support.waiting import PATIENCE_S, eventually

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)

SAVER = """
import os, sys, time
from ottla import FileOffsetStore, TopicPartition

path, partition, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = FileOffsetStore(path)
for offset in range(1, count + 1):
    store.save({TopicPartition("orders", partition): offset})

def stay(*_):
    print("holding", flush=True)
    time.sleep(600)

os.replace = stay
store.save({TopicPartition("orders", partition): 10**6})
"""


def saver(path: Path, partition: int, count: int) -> "subprocess.Popen[str]":
    """Saves `count` times, and then hangs in the middle of saving."""
    command = [sys.executable, "-c", SAVER, str(path), str(partition), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_stores_on_one_file_keep_each_others_offsets(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    one, two = FileOffsetStore(path), FileOffsetStore(path)
    assert one.load([FIRST, SECOND]) == two.load([FIRST, SECOND]) == {}
    one.save({FIRST: 10})
    two.save({SECOND: 7})
    assert FileOffsetStore(path).load([FIRST, SECOND]) == {FIRST: 10, SECOND: 7}
    one.save({FIRST: 11})
    assert two.load([FIRST]) == {FIRST: 11}, "a partition that moves from one to the other continues where it was"
    two.save({FIRST: 12})
    one.save({SECOND: 8})
    assert FileOffsetStore(path).load([FIRST, SECOND]) == {FIRST: 12, SECOND: 8}


def test_a_plain_pair_names_a_partition(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path / "positions.json")
    store.save({("orders", 0): 10})
    assert store.load([("orders", 0), ("orders", 1)]) == {FIRST: 10}
    for wrong in ({"orders": 1}, {("orders", 0): -1}, {("orders", 0): 1.5}, [("orders", 0)]):
        with pytest.raises(OttlaError):
            store.save(wrong)  # type: ignore[arg-type]
    assert store.load([FIRST]) == {FIRST: 10}


def test_a_process_killed_while_saving_does_not_block_others(tmp_path: Path) -> None:
    """Two processes save at the same time; one dies while it holds the lock, with half of the new file written."""
    path = tmp_path / "positions.json"
    with saver(path, 0, 50) as victim, saver(path, 1, 50) as other:
        try:
            holders = {}
            for each, partition in ((victim, FIRST), (other, SECOND)):

                def note(each: Any = each, partition: Any = partition) -> None:
                    holders[partition] = each.stdout.readline()

                threading.Thread(target=note, daemon=True).start()
            eventually(lambda: bool(holders), PATIENCE_S)
            # One holds the lock forever, so the other cannot get any further.
            (held,) = holders
            first, waiting = (victim, SECOND) if held == FIRST else (other, FIRST)
            saving = threading.Thread(target=FileOffsetStore(path).save, args=({TopicPartition("orders", 2): 3},))
            saving.start()
            first.kill()
            eventually(lambda: waiting in holders, PATIENCE_S)
        finally:
            victim.kill()
            other.kill()
        saving.join(PATIENCE_S)
    assert FileOffsetStore(path).load([FIRST, SECOND, TopicPartition("orders", 2)]) == {
        FIRST: 50,
        SECOND: 50,
        TopicPartition("orders", 2): 3,
    }, "every complete save counts, and the incomplete one does not"


@pytest.mark.parametrize("text", ["{", '{"format": 2}', '{"format": 1, "offsets": {"orders": {"0": 4.5}}}'])
def test_a_corrupt_file_is_not_overwritten(text: str, tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    store = FileOffsetStore(path)
    store.save({FIRST: 5})
    path.write_text(text)
    with pytest.raises(OttlaError, match=r"positions\.json is not a valid offsets file"):
        store.save({FIRST: 6})
    assert path.read_text() == text


def test_members_that_share_a_file_take_over_partitions(broker: Any, topic: str, tmp_path: Path) -> None:
    """A second member joins, takes over, and is alone in the end: every record is processed once."""
    count, path = 30, tmp_path / "positions.json"
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.auto.commit": False}
    settings["auto.offset.reset"] = "earliest"
    seen: list[int] = []

    def write(numbers: range) -> None:
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for number in numbers:
                producer.send(topic, f"{number}", partition=number % 2)

    def join() -> tuple[Consumer, StoredOffsets]:
        member = Consumer(settings)
        offsets = StoredOffsets(member, FileOffsetStore(path), mirror=False)
        member.subscribe([topic], listener=offsets)
        return member, offsets

    def read(members: list[tuple[Consumer, StoredOffsets]], until: int, shared: bool = False) -> None:
        deadline = monotonic() + PATIENCE_S
        while len(seen) < until or (shared and not all(member.assignment() for member, _ in members)):
            assert monotonic() < deadline, f"{len(seen)} of {until} came"
            for member, offsets in members:
                seen.extend(int(record.value or b"") for record in member.poll(50))
                offsets.save()

    write(range(count))
    one = join()
    read([one], count)
    two = join()
    read([one, two], count, shared=True)
    write(range(count, 2 * count))
    read([one, two], 2 * count)
    one[0].close()
    write(range(2 * count, 3 * count))
    read([two], 3 * count)
    two[0].close()
    assert sorted(seen) == list(range(3 * count))
    stored = FileOffsetStore(path).load([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    assert sorted(stored.values()) == [45, 45]
