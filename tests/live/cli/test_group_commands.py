"""`ottla group` against a running broker: what it shows, changes and rejects."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from ottla import Admin, Broker, Producer
from ottla.cli.group import lag as group_lag
from ottla.cli.group import reset as group_reset
from ottla.cli.main import main
from ottla.client.core.model import CommittedOffset
from ottla.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.record_batch import build_batch
from ottla.types import TopicPartition
from tests.support.command_line import Run
from tests.support.waiting import PATIENCE_S, eventually
from tests.support.wire.raw import RawConnection
from tests.support.wire.raw_group import RawMember, await_rebalance, hand_out, settle


@pytest.fixture(scope="module")
def quick_broker() -> Iterator[Any]:
    # Records of 2023 are not deleted.
    settings = {"group.initial.rebalance.delay.ms": 0, "log.retention.check.interval.ms": 3_600_000_000}
    with Broker.embedded(settings=settings) as running:
        yield running


@pytest.fixture
def bootstrap(quick_broker: Any) -> Any:
    return quick_broker.bootstrap


@pytest.fixture
def admin(quick_broker: Any) -> Iterator[Admin]:
    with Admin(bootstrap_servers=quick_broker.bootstrap) as client:
        yield client


@pytest.fixture
def group(topic: str) -> str:
    return f"g-{topic}"


@pytest.fixture
def partitions(admin: Admin, topic: str) -> list[TopicPartition]:
    admin.create_topic(topic, partitions=2)
    return [TopicPartition(topic, i) for i in range(2)]


def produce(broker: Any, partition: TopicPartition, count: int, timestamp: int | None = None) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for i in range(count):
            at = None if timestamp is None else timestamp + i
            producer.send(partition.topic, f"v{i}", partition=partition.partition, timestamp=at)


class RawTransaction:
    """A transaction over raw requests; stays open until end() is called."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self.connection = RawConnection(bootstrap)
        self.transactional_id = transactional_id
        self.sequences: dict[TopicPartition, int] = {}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.connection.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id]), 4)
            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
            answer = self.connection.ask(request, 3)
            if answer.error_code == ErrorCode.NONE:
                break
            assert ErrorCode(answer.error_code).retriable, answer
            assert time.monotonic() < deadline, answer
            time.sleep(0.02)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def write(self, partition: TopicPartition, count: int) -> None:
        topics = [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=partition.topic, partitions=[partition.partition])
        ]
        added = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        # The previous transaction completes shortly after its markers become visible.
        eventually(lambda: self._code_of(self.connection.ask(added, 3)) != ErrorCode.CONCURRENT_TRANSACTIONS)
        answer = self.connection.ask(added, 3)
        assert self._code_of(answer) == ErrorCode.NONE, answer
        batch = build_batch(
            [(1_700_000_000_000, b"k", b"v", ())] * count,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(partition, 0),
            transactional=True,
        )
        self.sequences[partition] = self.sequences.get(partition, 0) + count
        data = [ProduceRequest.PartitionProduceData(index=partition.partition, records=batch)]
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=5000,
            topic_data=[ProduceRequest.TopicProduceData(name=partition.topic, partition_data=data)],
        )
        answer = self.connection.ask(request, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    @staticmethod
    def _code_of(answer: Any) -> int:
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def end(self, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        deadline = time.monotonic() + PATIENCE_S
        while (code := self.connection.ask(request, 3).error_code) == ErrorCode.CONCURRENT_TRANSACTIONS:
            assert time.monotonic() < deadline
        assert code == ErrorCode.NONE


def described(run: Run, group: str, partition: TopicPartition) -> dict[str, Any]:
    rows = run("group", "describe", group, "--json").json["partitions"]
    return next(row for row in rows if (row["topic"], row["partition"]) == partition)


def await_stable_end(admin: Admin, partition: TopicPartition, offset: int) -> None:
    """Waits for the markers, which are written after the response to EndTxn."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = admin.list_offsets({partition: -1}, isolation_level="read_committed")[partition]
        if found is not None and found.offset == offset:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


# List


def test_groups_are_listed_as_a_table_and_as_json(run: Run, admin: Admin, group: str, partitions: Any) -> None:
    admin.alter_group_offsets(group, {partitions[0]: 0})
    table = run("group", "list").lines
    assert table[0].split() == ["GROUP", "STATE", "TYPE", "COORDINATOR"]
    assert [group, "Empty", "classic", "0"] in [line.split() for line in table]
    listed = run("group", "list", "--state", "empty", "--type", "classic", "--json").json
    assert {"group": group, "state": "Empty", "type": "classic", "protocol_type": None, "coordinator": 0} in listed
    assert run("group", "list", "--state", "stable", "--type", "share").out == "no groups match\n"


def test_an_unknown_state_is_rejected_with_a_suggestion(run: Run) -> None:
    done = run("group", "list", "--state", "stabel")
    assert (done.status, done.err) == (2, "ottla: unknown value stabel for --state (Did you mean stable?)\n")


# Describe


def test_describe_shows_offsets_lag_and_members(
    run: Run, quick_broker: Any, group: str, partitions: Any, topic: str
) -> None:
    produce(quick_broker, partitions[0], 10)
    with RawMember(quick_broker.bootstrap, group, [topic], client_id="ann", instance_id="desk-1") as ann:
        settle(ann, partitions=partitions)
        assert ann.commit({partitions[0]: 4}, metadata="half") == [ErrorCode.NONE]
        done = run("group", "describe", group)
        assert done.status == 0
        facts = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in done.lines[:7])
        assert (facts["state"], facts["type"], facts["assignor"]) == ("Stable", "classic", "range")
        assert facts["lag"].startswith("6 records, ")
        assert facts["lag"].endswith("behind (unknown for 1 partition)")
        header = next(line for line in done.lines if line.startswith("TOPIC"))
        assert re.sub(" +", " ", header) == "TOPIC PARTITION COMMITTED END LAG BEHIND MEMBER HOST INSTANCE METADATA"
        assert f"{partitions[1]}: nothing committed" in done.lines
        row = described(run, group, partitions[0])
        assert (row["committed_offset"], row["end_offset"], row["lag"], row["lag_is_exact"]) == (4, 10, 6, True)
        assert (row["member"], row["client_id"], row["host"]) == (ann.member_id, "ann", "127.0.0.1")
        assert (row["group_instance_id"], row["metadata"]) == ("desk-1", "half")
        assert 0 <= row["lag_seconds"] < 600
        assert described(run, group, partitions[1])["lag"] is None


def test_lag_counts_only_records_that_a_read_committed_consumer_receives(
    run: Run, admin: Admin, quick_broker: Any, group: str, partitions: Any
) -> None:
    """Spec: E8. Markers and aborted records do not count."""
    partition = partitions[0]
    produce(quick_broker, partition, 3)
    with RawTransaction(quick_broker.bootstrap, f"t-{group}") as transaction:
        transaction.write(partition, 5)
        transaction.end(commit=False)
        await_stable_end(admin, partition, 9)
        transaction.write(partition, 2)
        transaction.end(commit=True)
        await_stable_end(admin, partition, 12)
    admin.alter_group_offsets(group, {partition: 0})
    row = described(run, group, partition)
    assert (row["end_offset"], row["lag"], row["lag_is_exact"]) == (12, 5, True)
    admin.alter_group_offsets(group, {partition: 3})
    assert described(run, group, partition)["lag"] == 2
    admin.alter_group_offsets(group, {partition: 11})  # only the marker is left
    row = described(run, group, partition)
    assert (row["lag"], row["lag_seconds"]) == (0, 0)


def test_an_open_transaction_that_blocks_read_committed_consumers_is_named(
    run: Run, admin: Admin, quick_broker: Any, group: str, partitions: Any
) -> None:
    partition = partitions[0]
    produce(quick_broker, partition, 3)
    with RawTransaction(quick_broker.bootstrap, f"payments-{group}") as transaction:
        transaction.write(partition, 4)
        admin.alter_group_offsets(group, {partition: 1})
        row = described(run, group, partition)
        shown = run("group", "describe", group)
        transaction.end(commit=True)
    assert (row["end_offset"], row["last_stable_offset"], row["lag"]) == (7, 3, 2)
    (held,) = row["open_transactions"]
    assert (held["transactional_id"], held["first_offset"]) == (f"payments-{group}", 3)
    assert held["producer_id"] == transaction.producer_id
    assert shown.lines[-1] == (
        f"{partition}: read_committed consumers stop at 3, 4 offsets before the end: "
        f"the transaction of payments-{group} has been open since offset 3"
    )


def test_a_lag_too_large_to_count_is_the_offset_difference_and_marked(
    run: Run, admin: Admin, quick_broker: Any, group: str, partitions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_lag, "COUNT_MAX_OFFSETS", 5)
    produce(quick_broker, partitions[0], 20, timestamp=1_700_000_000_000)
    admin.alter_group_offsets(group, {partitions[0]: 0, partitions[1]: 0})
    row = described(run, group, partitions[0])
    assert (row["lag"], row["lag_is_exact"]) == (20, False)
    assert row["lag_seconds"] > 1_000_000  # the age of the first unread record is still shown
    assert described(run, group, partitions[1])["lag_is_exact"] is True
    done = run("group", "describe", group)
    assert any("~20" in line for line in done.lines)
    assert any(re.match(r"lag +about 20 records, \d+ d( \d+ h)? behind", line) for line in done.lines)


def test_the_age_of_the_first_unread_record_is_the_lag_in_time(
    run: Run, admin: Admin, quick_broker: Any, group: str, partitions: Any
) -> None:
    now = time.time_ns() // 1_000_000
    produce(quick_broker, partitions[0], 3, timestamp=now - 3_600_000)
    produce(quick_broker, partitions[0], 3, timestamp=now - 30_000)
    admin.alter_group_offsets(group, {partitions[0]: 3})
    assert 30 <= described(run, group, partitions[0])["lag_seconds"] < 600


def test_committed_offsets_out_of_range_are_noted(
    run: Run, admin: Admin, quick_broker: Any, group: str, partitions: Any
) -> None:
    produce(quick_broker, partitions[0], 10)
    admin.delete_records({partitions[0]: 6})
    admin.alter_group_offsets(group, {partitions[0]: 2, partitions[1]: 9})
    row = described(run, group, partitions[0])
    assert (row["lag"], row["notes"]) == (4, ["offsets 2 to 5 have been deleted"])
    row = described(run, group, partitions[1])
    assert (row["lag"], row["notes"]) == (0, ["the committed offset is 9 beyond the end"])


def test_a_missing_group_is_reported_with_a_similar_name(run: Run, admin: Admin, group: str, partitions: Any) -> None:
    admin.alter_group_offsets(group, {partitions[0]: 0})
    for command in ("describe", "members", "delete"):
        done = run("group", command, f"{group}x")
        assert (done.status, done.err) == (1, f"ottla: group {group}x does not exist (Did you mean {group}?)\n")


# Members


def test_members_are_shown_with_their_partitions(
    run: Run, quick_broker: Any, group: str, partitions: Any, topic: str
) -> None:
    bootstrap = quick_broker.bootstrap
    with RawMember(bootstrap, group, [topic], client_id="ann") as ann:
        settle(ann, partitions=partitions)
        table = run("group", "members", group).lines
        assert table[1].split()[:4] == [ann.member_id, "ann", "127.0.0.1", "2"]
        assert table[1].endswith(f"{topic}: 0-1")
        (member,) = run("group", "members", group, "--json").json
        assert (member["member"], member["topics"], member["assignment"]) == (ann.member_id, [topic], {topic: [0, 1]})
        ann.leave()
    assert run("group", "members", group).out == f"group {group} has no members (state Empty)\n"
    assert run("group", "members", group, "--json").json == []


# History


def await_history(run: Run, group: str, count: int) -> list[Any]:
    """Waits for the history, which is written after the responses to the members."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        done = run("group", "history", group, "--json")
        if done.status == 0 and len(done.json) >= count:
            return list(done.json)
        assert time.monotonic() < deadline, done
        time.sleep(0.02)


def test_history_shows_causes_and_moved_partitions(
    run: Run, quick_broker: Any, group: str, partitions: Any, topic: str
) -> None:
    bootstrap = quick_broker.bootstrap
    with (
        RawMember(bootstrap, group, [topic], client_id="ann") as ann,
        RawMember(bootstrap, group, [topic], client_id="bob", reason="deployed") as bob,
    ):
        settle(ann, partitions=partitions)
        bob.post_join()
        await_rebalance(ann)
        ann.post_join()
        ann.await_join(), bob.await_join()
        hand_out(ann, bob, partitions=partitions)
        bob.leave("shut down")
        await_rebalance(ann)
        ann.join()
        hand_out(ann, partitions=partitions)
        first, second, third = await_history(run, group, 3)
        assert [cause["what"] for cause in first["causes"]] == ["joined"]
        assert second["causes"] == [{"what": "joined", "member": bob.member_id, "reason": "deployed"}]
        assert second["changes"] == [
            {
                "member": ann.member_id,
                "was": "there",
                "gained": [],
                "lost": [f"{topic}-1"],
                "kept": [f"{topic}-0"],
            },
            {"member": bob.member_id, "was": "new", "gained": [f"{topic}-1"], "lost": [], "kept": []},
        ]
        assert third["causes"] == [{"what": "left", "member": bob.member_id, "reason": "shut down"}]
        assert third["generation"] == first["generation"] + 2
        shown = run("group", "history", group, "--last", "1").lines
        short = f"bob-{bob.member_id.removeprefix('bob-')[:8]}"
        assert shown[0].startswith(f"generation {third['generation']}  20")
        assert "1 member, range" in shown[0]
        assert shown[1] == f"  because {short} left (shut down)"
        assert shown[2].endswith(f"= {topic}: 0  + {topic}: 1")
        assert shown[3].endswith(f"- {topic}: 1  gone")


def test_a_group_without_history_differs_from_a_missing_group(
    run: Run, admin: Admin, group: str, partitions: Any, quick_broker: Any, topic: str
) -> None:
    with RawMember(quick_broker.bootstrap, f"{group}-other", [topic]) as ann:
        settle(ann, partitions=partitions)
        await_history(run, f"{group}-other", 1)
    admin.alter_group_offsets(group, {partitions[0]: 0})
    assert run("group", "history", group).out == f"group {group} has no recorded rebalances\n"
    done = run("group", "history", "no-such-group")
    assert done.status == 1
    assert done.err.startswith("ottla: group no-such-group does not exist and has no history")


def test_a_cluster_without_history_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker.embedded() as fresh:
        assert main(["group", "history", "g", "--bootstrap", fresh.bootstrap]) == 1
    error = capsys.readouterr().err
    assert error.startswith("ottla: 127.0.0.1:")
    assert "has no rebalance history" in error
    assert "__ottla_rebalances" in error


# Reset


@pytest.fixture
def ten_records(quick_broker: Any, partitions: Any) -> list[TopicPartition]:
    """Ten records a second apart in partition 0, none in partition 1."""
    with Producer(bootstrap_servers=quick_broker.bootstrap) as producer:
        for i in range(10):
            producer.send(partitions[0].topic, f"v{i}", partition=0, timestamp=1_700_000_000_000 + i * 1000)
    return list(partitions)


@pytest.mark.parametrize(
    ("options", "after", "note"),
    [
        (["--to-earliest"], 0, None),
        (["--to-latest"], 10, None),
        (["--to-offset", "7"], 7, None),
        (["--to-offset", "99"], 10, "99 is beyond the end"),
        (["--shift-by", "3"], 8, None),
        (["--shift-by", "-3"], 2, None),
        (["--shift-by", "-30"], 0, "-25 is before the first offset"),
        (["--to-time", "1700000004500"], 5, None),
        (["--to-time", "2023-11-14T22:13:24.500+00:00"], 5, None),
        (["--to-time", "2100-01-01"], 10, "no record at or after that time: reset to the end"),
    ],
)
def test_every_reset_target(
    run: Run, admin: Admin, group: str, ten_records: Any, options: list[str], after: int, note: str | None
) -> None:
    admin.alter_group_offsets(group, {ten_records[0]: 5})
    dry = run("group", "reset-offsets", group, *options, "--json").json
    (move,) = dry["partitions"]
    assert (dry["executed"], move["before"], move["after"], move["note"]) == (False, 5, after, note)
    assert admin.list_group_offsets(group)[ten_records[0]].offset == 5  # nothing happens without --execute
    assert run("group", "reset-offsets", group, *options, "--execute").status == 0
    assert admin.list_group_offsets(group)[ten_records[0]].offset == after


def test_a_dry_run_shows_the_changes_and_applies_nothing(run: Run, admin: Admin, group: str, ten_records: Any) -> None:
    admin.alter_group_offsets(group, {ten_records[0]: 5})
    done = run("group", "reset-offsets", group, "--to-latest")
    assert [line.split() for line in done.lines[:2]] == [
        ["TOPIC", "PARTITION", "BEFORE", "AFTER", "CHANGE"],
        [ten_records[0].topic, "0", "5", "→", "10", "+5"],
    ]
    assert done.lines[2:] == ["dry run: add --execute to reset 1 partition"]


def test_only_the_selected_partitions_are_reset(
    run: Run, admin: Admin, group: str, ten_records: Any, topic: str
) -> None:
    admin.alter_group_offsets(group, dict.fromkeys(ten_records, 0))
    run("group", "reset-offsets", group, "--to-latest", "--topic", f"{topic}:0", "--execute")
    assert [offset.offset for offset in admin.list_group_offsets(group).values()] == [10, 0]
    done = run("group", "reset-offsets", group, "--to-latest", "--topic", f"{topic}:0,7")
    assert done.err == f"ottla: topic {topic} has no partition 7 (it has partitions 0 to 1)\n"
    assert run("group", "reset-offsets", group, "--to-latest", "--topic", f"{topic}:x").status == 2


def test_a_missing_group_needs_a_topic_and_is_created(
    run: Run, admin: Admin, group: str, ten_records: Any, topic: str
) -> None:
    done = run("group", "reset-offsets", group, "--to-earliest")
    assert (done.status, done.err) == (
        1,
        f"ottla: group {group} has no committed offsets (pass the topics with --topic)\n",
    )
    dry = run("group", "reset-offsets", group, "--to-latest", "--topic", topic)
    assert f"and create group {group}" in dry.out
    assert run("group", "reset-offsets", group, "--to-latest", "--topic", topic, "--execute").status == 0
    assert [offset.offset for offset in admin.list_group_offsets(group).values()] == [10, 0]
    shift = run("group", "reset-offsets", f"{group}-2", "--shift-by", "1", "--topic", topic, "--json").json
    assert [move["note"] for move in shift["partitions"]] == ["no committed offset to shift"] * 2


def test_a_group_with_members_is_not_reset(
    run: Run, admin: Admin, quick_broker: Any, group: str, ten_records: Any, topic: str
) -> None:
    with RawMember(quick_broker.bootstrap, group, [topic], client_id="ann") as ann:
        settle(ann, partitions=ten_records)
        assert ann.commit({ten_records[0]: 5}) == [ErrorCode.NONE]
        done = run("group", "reset-offsets", group, "--to-earliest", "--execute")
        assert (done.status, done.out) == (1, "")
        assert done.err == (
            f"ottla: group {group} has 1 member (ann): its offsets cannot be reset while it has members "
            "(stop its consumers first)\n"
        )
        dry = run("group", "reset-offsets", group, "--to-earliest")
        assert dry.status == 0
        assert dry.lines[-1] == f"group {group} has 1 member: stop its consumers before you use --execute"
        assert admin.list_group_offsets(group)[ten_records[0]].offset == 5


def test_members_that_join_between_check_and_commit_are_reported_too(
    run: Run, quick_broker: Any, group: str, ten_records: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RawMember(quick_broker.bootstrap, group, [topic]) as ann:
        settle(ann, partitions=ten_records)
        monkeypatch.setattr(group_reset, "refuse_members", lambda *_: None)
        done = run("group", "reset-offsets", group, "--to-latest", "--topic", topic, "--execute")
        assert done.status == 1
        assert done.err.startswith(f"ottla: group {group} has new members")


@pytest.mark.parametrize("name", ["saved.csv", "saved.json"])
def test_offsets_are_exported_and_restored(
    run: Run, admin: Admin, group: str, ten_records: Any, tmp_path: Path, name: str
) -> None:
    saved = str(tmp_path / name)
    admin.alter_group_offsets(group, {ten_records[0]: 5, ten_records[1]: 0})
    done = run("group", "reset-offsets", group, "--export", saved)
    assert done.lines[-1] == f"wrote 2 offsets to {saved}"
    run("group", "reset-offsets", group, "--to-latest", "--execute")
    assert admin.list_group_offsets(group)[ten_records[0]].offset == 10
    run("group", "reset-offsets", group, "--from-file", saved, "--execute")
    assert [offset.offset for offset in admin.list_group_offsets(group).values()] == [5, 0]
    # Another group can import them, too.
    run("group", "reset-offsets", f"{group}-copy", "--from-file", saved, "--execute")
    assert admin.list_group_offsets(f"{group}-copy") == admin.list_group_offsets(group)


def test_a_hand_written_offsets_file(run: Run, admin: Admin, group: str, ten_records: Any, tmp_path: Path) -> None:
    topic = ten_records[0].topic
    by_hand = tmp_path / "offsets.csv"
    by_hand.write_text(f"# where to go\n{topic},0,4\n\n{topic}-gone,0,1\n")
    done = run("group", "reset-offsets", group, "--from-file", str(by_hand), "--json")
    assert [(move["after"], move["note"]) for move in done.json["partitions"]] == [
        (4, None),
        (None, "the partition does not exist"),
    ]
    for content, message in [
        (f"{topic},0\n", f"line 1 is not valid: {topic},0"),
        (f"{topic},0,-4\n", "line 1 is not valid"),
        ("", "contains no offsets"),
        ('{"topic": "t"}', "is not valid JSON for offsets"),
        ('[{"topic": "t"}]', "offsets.csv, entry 1: partition is missing"),
    ]:
        by_hand.write_text(content)
        done = run("group", "reset-offsets", group, "--from-file", str(by_hand))
        assert done.status == 2, done
        assert message in done.err, done


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no target position"),
        (["--to-earliest", "--to-latest"], "--to-earliest and --to-latest cannot be combined"),
        (["--to-time", "tomorrow"], "--to-time tomorrow is not a valid time"),
        (["--from-file", "/no/such/file"], "/no/such/file: no such file or directory"),
    ],
)
def test_invalid_reset_options_are_rejected(run: Run, group: str, options: list[str], message: str) -> None:
    done = run("group", "reset-offsets", group, *options)
    assert done.status == 2
    assert done.err.startswith(f"ottla: {message}")
    assert done.err.count("\n") == 1


# Delete


def test_groups_are_deleted_with_their_offsets(run: Run, admin: Admin, group: str, partitions: Any) -> None:
    names = [group, f"{group}-2"]
    for name in names:
        admin.alter_group_offsets(name, {partitions[0]: 0})
    done = run("group", "delete", *names, "--json")
    assert (done.status, done.json) == (0, {"deleted": names})
    assert not {listed.group_id for listed in admin.list_groups()} & set(names)
    assert admin.list_group_offsets(group) == {}


def test_if_one_group_has_members_no_group_is_deleted(
    run: Run, admin: Admin, quick_broker: Any, group: str, partitions: Any, topic: str
) -> None:
    admin.alter_group_offsets(f"{group}-2", {partitions[0]: 0})
    with RawMember(quick_broker.bootstrap, group, [topic], client_id="ann") as ann:
        settle(ann, partitions=partitions)
        done = run("group", "delete", f"{group}-2", group)
        assert done.status == 1
        assert done.err.startswith(f"ottla: group {group} has 1 member (ann): cannot be deleted while it has members")
        assert f"{group}-2" in [listed.group_id for listed in admin.list_groups()]


def test_delete_asks_for_confirmation_on_a_terminal(
    admin: Admin, quick_broker: Any, group: str, partitions: Any
) -> None:
    admin.alter_group_offsets(group, {partitions[0]: 0})

    def delete(answer: bytes) -> tuple[int, bytes]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "ottla", "group", "delete", group],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"OTTLA_BOOTSTRAP": quick_broker.bootstrap, "TERM": "dumb"},
        )
        os.close(theirs)
        os.write(ours, answer)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # a closed pty raises EIO
            pass
        os.close(ours)
        return process.wait(PATIENCE_S), shown

    status, shown = delete(b"n\n")
    assert status == 1
    assert b"1 committed offset" in shown
    assert b"Delete permanently?" in shown
    assert group in [listed.group_id for listed in admin.list_groups()]
    status, shown = delete(b"y\n")
    assert status == 0
    assert f"deleted {group}".encode() in shown
    assert group not in [listed.group_id for listed in admin.list_groups()]


# Stored records


def test_the_offsets_formatter_decodes_commits_and_tombstones(
    run: Run, admin: Admin, group: str, partitions: Any
) -> None:
    """Spec: C5."""
    topic = partitions[0].topic
    offsets: dict[TopicPartition, int | CommittedOffset] = {partitions[0]: CommittedOffset(7, 0, "noon")}
    admin.alter_group_offsets(group, offsets | {partitions[1]: 0})
    admin.delete_groups([group])
    done = run("consume", "__consumer_offsets", "--formatter", "offsets", "--exit-at-end")
    mine = [re.sub(r"\d{13}", "T", line) for line in done.lines if line.startswith(f"[{group},")]
    assert mine == [
        f"[{group},{topic},0]::[OffsetMetadata[7,noon],CommitTime T,ExpirationTime T]",
        f"[{group},{topic},1]::[OffsetMetadata[0,NO_METADATA],CommitTime T,ExpirationTime T]",
        f"[{group},{topic},0]::null",
        f"[{group},{topic},1]::null",
    ]
    as_json = [
        json.loads(line)
        for line in run("consume", "__consumer_offsets", "--formatter", "offsets", "--json", "-e").lines
    ]
    committed = next(row["committed"] for row in as_json if row["group"] == group)
    assert (committed["offset"], committed["metadata"]) == (7, "noon")
    assert committed["expiration_timestamp"] - committed["commit_timestamp"] == 604_800_000


def test_the_group_metadata_formatter_decodes_members(
    run: Run, quick_broker: Any, group: str, partitions: Any, topic: str
) -> None:
    with RawMember(quick_broker.bootstrap, group, [topic], client_id="ann") as ann:
        settle(ann, partitions=partitions)
        done = run("consume", "__consumer_offsets", "--formatter", "group-metadata", "-e")
        stable = [line for line in done.lines if line.startswith(f"[{group}]::[GroupMetadata[{ann.generation},")]
        assert stable[-1].endswith(f"Members[[{ann.member_id},NO_INSTANCE_ID,ann,/127.0.0.1,[{topic}-0 {topic}-1]]]]")


def test_a_formatter_on_the_wrong_topic_fails_with_one_line(
    run: Run, quick_broker: Any, partitions: Any, topic: str
) -> None:
    produce(quick_broker, partitions[0], 3)
    done = run("consume", topic, "--formatter", "offsets", "-e")
    assert (done.status, done.err) == (
        1,
        f"ottla: the formatter offsets cannot read topic {topic} (offset 0: the record has no key)\n",
    )
    assert run("consume", topic, "--formatter", "nonsense").status == 2
    assert run("consume", topic, "--formatter", "offsets", "--format", "full").status == 2


def test_every_command_has_help_with_examples(run: Run) -> None:
    for command in ("list", "describe", "members", "history", "reset-offsets", "delete"):
        done = run("group", command, "--help")
        assert done.status == 0, command
        assert "Examples:" in done.out, command
        assert f"ottla group {command}" in done.out, command
