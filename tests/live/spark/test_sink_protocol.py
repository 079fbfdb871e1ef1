"""The exactly-once sink on real brokers, step by step: its tasks and its driver are called as Spark calls them.

Each story runs on Ottla with two-phase commit, on Ottla without it, and on a real Apache Kafka. Spec: F2, F5, E9, R9.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla import Broker
from ottla.client.blocking import Admin
from ottla.errors import OttlaError
from ottla.spark.sink import driver as sink_driver
from ottla.spark.sink.decisions import is_decided
from ottla.spark.sink.errors import LostForGood, LostPart, NotOwner, SinkError
from ottla.spark.sink.ledger import Entry
from ottla.spark.sink.states import BatchState
from ottla.spark.sink.tasks import Rows, write_exactly_once
from tests.support.processes.oracle import Target
from tests.support.waiting import eventually, stretched
from tests.support.worlds.sink_stage import SinkRun, SinkStage


@pytest.fixture(scope="module")
def two_phase() -> Iterator[Target]:
    with Broker.embedded(settings={"transaction.two.phase.commit.enable": True}) as running:
        yield Target("two-phase", running.bootstrap, running.pid)


@pytest.fixture(params=["two_phase", "ottla", pytest.param("kafka", marks=pytest.mark.oracle, id="apache")])
def target(request: pytest.FixtureRequest) -> Target:
    chosen: Target = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def stage(target: Target, topic: str) -> SinkStage:
    return SinkStage(target.bootstrap, topic)


def three_parts(run: SinkRun, batch: int) -> list[Any]:
    return [run.write(batch, task, [f"{batch}-{task}-{row}" for row in range(3)]) for task in range(3)]


def rows(*batches: int) -> list[str]:
    return sorted(f"{batch}-{task}-{row}" for batch in batches for task in range(3) for row in range(3))


def test_batches_become_visible_when_the_driver_commits_them(stage: SinkStage) -> None:
    run = stage.start()
    for batch in range(3):
        parts = three_parts(run, batch)
        assert stage.read() == rows(*range(batch)), "prepared rows are not visible"
        assert stage.is_held_back()
        run.commit(batch, *parts)
        assert stage.read() == rows(*range(batch + 1))
    assert stage.ledger() == {task: Entry(3, stage.query) for task in range(3)}
    assert not stage.is_held_back()
    state = stage.state()
    assert state.is_done()
    assert state.decision is not None
    assert state.decision.batch == 2
    assert state.decision.held_ms >= 0
    assert state.decision.open_ms >= state.decision.held_ms


def test_a_driver_that_dies_before_its_decision_has_written_nothing(stage: SinkStage) -> None:
    three_parts(stage.start(), 0)
    run = stage.start()
    run.commit(0, *three_parts(run, 0))
    assert stage.read() == rows(0)


def test_a_driver_that_dies_after_its_decision_is_rolled_forward_by_the_next(stage: SinkStage) -> None:
    first = stage.start()
    first.decide(0, *three_parts(first, 0))
    assert stage.read() == []
    run = stage.start()
    parts = three_parts(run, 0)
    assert all(part.state is BatchState.SETTLED for part in parts), "nothing is written again"
    assert stage.read() == rows(0)
    run.commit(0, *parts)
    run.commit(1, *three_parts(run, 1))
    assert stage.read() == rows(0, 1)


def test_a_driver_that_dies_between_two_commits_leaves_no_partial_batch(stage: SinkStage) -> None:
    first = stage.start()
    parts = three_parts(first, 0)
    plan = first.decide(0, *parts)
    with Admin(bootstrap_servers=stage.bootstrap) as admin:
        admin.commit_prepared(plan.commit[0].prepared(stage.names))
    run = stage.start()
    run.commit(0, *three_parts(run, 0))
    assert stage.read() == rows(0)


def test_a_batch_committed_before_sparks_commit_log_is_not_written_again(stage: SinkStage) -> None:
    first = stage.start()
    first.commit(0, *three_parts(first, 0))
    run = stage.start()
    run.commit(0, *three_parts(run, 0))
    run.commit(0, *three_parts(run, 0))
    assert stage.read() == rows(0)


def test_a_commit_called_twice_writes_once(stage: SinkStage) -> None:
    run = stage.start()
    parts = three_parts(run, 0)
    run.commit(0, *parts)
    run.commit(0, *parts)
    assert stage.read() == rows(0)


def test_an_abort_after_the_decision_drops_nothing(stage: SinkStage) -> None:
    run = stage.start()
    parts = three_parts(run, 0)
    run.commit(0, *parts)
    run.abort(0, *parts)
    assert stage.read() == rows(0)


def test_an_abort_before_the_decision_drops_everything(stage: SinkStage) -> None:
    """Including open transactions of tasks that died: with two-phase commit no timeout would end them."""
    run = stage.start()
    parts = three_parts(run, 0)
    run.abort(0, *parts[:2])
    assert not is_decided(stage.state(), stage.query, 0)
    eventually(lambda: not stage.is_held_back())  # an abort is answered before its markers are written
    assert stage.read() == []
    again = stage.start()  # Spark ends a query whose batch it aborted
    again.commit(0, *three_parts(again, 0))
    assert stage.read() == rows(0)


def test_an_attempt_that_spark_gave_up_is_fenced_by_the_next(stage: SinkStage) -> None:
    run = stage.start()
    run.write(0, 0, ["zombie"])
    run.commit(0, run.write(0, 0, ["row"]))
    assert stage.read() == ["row"]


def test_fewer_tasks_after_a_crash_leave_nothing_open(stage: SinkStage) -> None:
    three_parts(stage.start(), 0)
    run = stage.start()
    run.commit(0, run.write(0, 0, ["all", "in", "one"]))
    assert stage.read() == ["all", "in", "one"]
    assert not stage.is_held_back()


def test_fewer_tasks_after_a_decision_still_finish_it(stage: SinkStage) -> None:
    first = stage.start()
    first.decide(0, *three_parts(first, 0))
    run = stage.start()
    run.commit(0, run.write(0, 0, ["something else"]))
    assert stage.read() == rows(0)


def test_a_part_the_broker_dropped_after_the_decision_is_written_again(stage: SinkStage) -> None:
    first = stage.start()
    parts = three_parts(first, 0)
    plan = first.decide(0, *parts)
    with Admin(bootstrap_servers=stage.bootstrap) as admin:
        admin.abort_prepared(plan.commit[1].prepared(stage.names))
    run = stage.start()
    again = three_parts(run, 0)
    assert [part.part is not None for part in again] == [False, True, False]
    run.commit(0, *again)
    assert stage.read() == rows(0)


def test_a_part_that_cannot_be_reproduced_stops_the_query(stage: SinkStage) -> None:
    first = stage.start()
    plan = first.decide(0, *three_parts(first, 0))
    with Admin(bootstrap_servers=stage.bootstrap) as admin:
        admin.abort_prepared(plan.commit[1].prepared(stage.names))
    run = stage.start()
    with pytest.raises(LostForGood, match=r"has other rows: 1 rows of 5 bytes .* instead of 3 rows of 15 bytes"):
        run.write(0, 1, ["other"])
    assert not any(value == "other" for value in stage.read("read_committed"))


def test_a_part_that_cannot_be_reproduced_is_replaced_with_lost_parts_replace(two_phase: Target, topic: str) -> None:
    stage = SinkStage(two_phase.bootstrap, topic, lostParts="replace")
    first = stage.start()
    plan = first.decide(0, *three_parts(first, 0))
    with Admin(bootstrap_servers=stage.bootstrap) as admin:
        for part in plan.commit[1:]:
            admin.abort_prepared(part.prepared(stage.names))
    run = stage.start()
    run.commit(0, run.write(0, 0, ["not this"]), run.write(0, 1, ["other"]), run.write(0, 2, []))
    run.commit(1, run.write(1, 0, ["next"]))
    assert stage.read() == ["0-0-0", "0-0-1", "0-0-2", "next", "other"]


def test_a_part_that_timed_out_after_the_decision_is_written_again(topic: str) -> None:
    """Without two-phase commit a broker aborts what is open for too long, decided or not."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with Broker.embedded(settings=settings) as broker:
        stage = SinkStage(broker.bootstrap, topic)
        patient = stage.options
        first = stage.start()
        parts = [first.write(0, task, [f"0-{task}-{row}" for row in range(3)]) for task in (0, 2)]
        # Just long enough for one task to write three rows on any machine.
        stage.options = replace(patient, kafka={**patient.kafka, "transaction.timeout.ms": str(stretched(10_000))})
        parts.insert(1, first.write(0, 1, [f"0-1-{row}" for row in range(3)]))
        stage.options = patient
        first.decide(0, *parts)
        with Admin(bootstrap_servers=broker.bootstrap) as admin:

            def ongoing() -> list[str]:
                return [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]

            eventually(lambda: stage.names.task(1) not in ongoing())
        run = stage.start()
        again = three_parts(run, 0)
        assert [part.part is not None for part in again] == [False, True, False]
        run.commit(0, *again)
        assert stage.read() == rows(0)


def test_the_driver_reports_a_part_that_the_broker_dropped(stage: SinkStage) -> None:
    run = stage.start()
    parts = three_parts(run, 0)
    assert parts[1].part is not None
    with Admin(bootstrap_servers=stage.bootstrap) as admin:
        admin.abort_prepared(parts[1].part.prepared(stage.names))
    with pytest.raises(LostPart, match="no longer has the part of task 1"):
        run.commit(0, *parts)


def test_a_driver_whose_parts_another_one_has_ended_reports_that_driver(stage: SinkStage) -> None:
    """Two drivers run on one checkpoint: the second one's tasks have taken over, and its driver has not decided yet."""
    first = stage.start()
    parts = three_parts(first, 0)
    second = stage.start()
    theirs = three_parts(second, 0)
    owner = rf"another driver owns this sink: run {second.name} on .*, since 20.* UTC; this is run {first.name}"
    with pytest.raises(NotOwner, match=owner):
        first.commit(0, *parts)
    with pytest.raises(NotOwner, match=owner):
        first.write(1, 0, ["a new worker of the first"])
    second.commit(0, *theirs)
    assert stage.read() == rows(0)


def test_a_task_that_another_driver_fences_reports_that_driver(stage: SinkStage) -> None:
    import pyarrow as pa

    first, second = stage.start(), stage.start()

    def values() -> Iterator[Any]:
        yield pa.record_batch({"value": pa.array(["dropped"])})
        second.write(0, 0, ["a"])
        yield pa.record_batch({"value": pa.array(["dropped too"])})

    with pytest.raises(NotOwner, match=rf"another driver owns this sink: run {second.name}"):
        write_exactly_once(stage.options, first.place(0, 0), Rows(values(), ["value"], stage.options))


def test_a_task_that_begins_after_its_run_was_aborted_opens_nothing(stage: SinkStage) -> None:
    """Spark does not wait for tasks that it kills: one may not have written its first row yet."""
    run = stage.start()
    run.abort(0, run.write(0, 0, ["dropped"]))
    with pytest.raises(SinkError, match="this run was aborted"):
        run.write(0, 1, ["late"])
    again = stage.start()
    again.commit(0, again.write(0, 0, ["a"]), again.write(0, 1, ["b"]))
    assert stage.read() == ["a", "b"]
    assert not stage.is_held_back()


def test_a_second_driver_on_the_same_checkpoint_is_fenced(stage: SinkStage) -> None:
    first, second = stage.start(), stage.start()
    first.commit(0, *three_parts(first, 0))
    second.commit(1, *three_parts(second, 1))
    with pytest.raises(NotOwner, match=rf"another driver owns this sink: run {second.name} on .*, since 20.* UTC"):
        first.commit(2, *three_parts(first, 2))
    second.commit(2, *three_parts(second, 2))
    assert stage.read() == rows(0, 1, 2)


def test_another_query_cannot_use_the_sinks_name(stage: SinkStage) -> None:
    run = stage.start()
    run.commit(0, *three_parts(run, 0))
    stranger = stage.start(query="another checkpoint")
    with pytest.raises(NotOwner, match="this sink belongs to another query"):
        stranger.write(0, 0, ["it would be lost otherwise"])


def test_a_checkpoint_older_than_the_sink_is_refused(stage: SinkStage) -> None:
    run = stage.start()
    for batch in range(3):
        run.commit(batch, *three_parts(run, batch))
    restored = stage.start()
    with pytest.raises(NotOwner, match=r"the checkpoint is older than the sink: this is batch 1, and .* batch 2"):
        restored.write(1, 0, ["would be lost"])


def test_the_decisions_topic_replaces_an_expired_ledger(stage: SinkStage) -> None:
    """Offsets of a group without members expire after offsets.retention.minutes."""
    first = stage.start()
    first.commit(0, *three_parts(first, 0))
    eventually(lambda: len(stage.ledger()) == 3)  # a commit is answered before its markers are written
    with Admin(bootstrap_servers=stage.bootstrap) as admin:
        admin.delete_groups([stage.names.group(0)])
    assert stage.ledger() == {}
    run = stage.start()
    run.commit(0, *three_parts(run, 0))
    assert stage.read() == rows(0)


def test_a_decisions_topic_that_is_too_small_is_refused(target: Target, topic: str) -> None:
    decisions = f"sink-{topic}-decisions"
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.create_topic(decisions, partitions=1)
        eventually(lambda: decisions in [known.name for known in admin.list_topics()])
    with pytest.raises(SinkError, match=r"has 1 partitions\. It needs 16 partitions and cleanup\.policy=compact"):
        SinkStage(target.bootstrap, topic).start().write(0, 0, ["a"])


def test_more_tasks_than_one_group_of_the_ledger_holds(stage: SinkStage) -> None:
    run = stage.start()
    run.commit(0, *(run.write(0, task, [f"{task:02}"]) for task in (0, 15, 16, 33)))
    assert stage.read() == ["00", "15", "16", "33"]
    assert set(stage.ledger([0, 15, 16, 33])) == {0, 15, 16, 33}
    again = stage.start()
    again.commit(0, *(again.write(0, task, [f"{task:02}"]) for task in (0, 15, 16, 33)))
    assert stage.read() == ["00", "15", "16", "33"]


# --- inside foreachBatch: each write has its own id -----------------------------------------------------


def test_writes_inside_foreach_batch_are_the_batches_of_a_stream(stage: SinkStage) -> None:
    run = stage.start()
    for batch in range(3):
        call = run.for_each_batch()
        call.commit(batch, *three_parts(call, batch))
    replayed = stage.start().for_each_batch()
    parts = three_parts(replayed, 2)
    assert all(part.state is BatchState.SETTLED and part.repeated is None for part in parts)
    replayed.commit(2, *parts)
    assert stage.read() == rows(0, 1, 2)
    with pytest.raises(NotOwner, match="the checkpoint is older than the sink: this is batch 1"):
        replayed.write(1, 0, ["would be lost"])
    stream = stage.start()  # the query continues without foreachBatch
    stream.commit(3, *three_parts(stream, 3))
    assert stage.read() == rows(0, 1, 2, 3)


def test_a_failed_write_can_be_retried_in_the_same_run(stage: SinkStage) -> None:
    """The function inside foreachBatch catches the error and calls the write again."""
    run = stage.start()
    first = run.for_each_batch()
    first.abort(0, first.write(0, 0, ["dropped"]))
    with pytest.raises(SinkError, match="this run was aborted before the task began"):
        first.write(0, 1, ["late"])
    second = run.for_each_batch()
    second.decide(0, *three_parts(second, 0))
    third = run.for_each_batch()  # what was decided is committed unchanged
    third.commit(0, *three_parts(third, 0))
    assert stage.read() == rows(0)
    assert not stage.is_held_back()


def test_a_function_that_continues_after_a_failure_loses_nothing_that_was_decided(stage: SinkStage) -> None:
    run = stage.start()
    first = run.for_each_batch()
    first.decide(0, *three_parts(first, 0))
    failed = run.for_each_batch()
    failed.abort(1, failed.write(1, 0, ["dropped"]))
    second = run.for_each_batch()
    second.commit(1, second.write(1, 0, ["next"]), second.write(1, 1, []))
    assert stage.read() == sorted([*rows(0), "next"])
    assert not stage.is_held_back()


def test_a_dropped_part_of_a_batch_that_the_function_skipped_is_reported(two_phase: Target, topic: str) -> None:
    stage = SinkStage(two_phase.bootstrap, topic)
    run = stage.start()
    first = run.for_each_batch()
    plan = first.decide(0, *three_parts(first, 0))
    with Admin(bootstrap_servers=stage.bootstrap) as admin:
        admin.abort_prepared(plan.commit[1].prepared(stage.names))
    second = run.for_each_batch()
    with pytest.raises(LostForGood, match=r"has moved on to batch 1, .* part of task 1.* set lostParts=replace"):
        second.commit(1, second.write(1, 0, ["next"]))
    stage.options = replace(stage.options, lost_parts="replace")
    third = run.for_each_batch()
    third.commit(1, third.write(1, 0, ["next"]))
    assert stage.read() == sorted([*(row for row in rows(0) if not row.startswith("0-1")), "next"])


def test_a_kept_driver_follows_the_latest_options(two_phase: Target, topic: str) -> None:
    """Spark keeps the process: the fix in an error's hint must work without a new application."""
    stage = SinkStage(two_phase.bootstrap, topic)
    run = stage.start()
    first, second, third, fourth = (run.for_each_batch() for _ in range(4))
    parts = three_parts(first, 0)
    with Admin(bootstrap_servers=stage.bootstrap) as admin:
        admin.abort_prepared(parts[1].part.prepared(stage.names))
    with pytest.raises(LostPart, match="no longer has the part of task 1"):
        first.commit(0, *parts)
    with pytest.raises(LostPart, match="set lostParts=replace"):
        second.commit(1, second.write(1, 0, ["next"]))
    stage.options = replace(stage.options, lost_parts="replace")
    third.commit(1, third.write(1, 0, ["next"]))
    stage.options = replace(stage.options, kafka={**stage.options.kafka, "client.id": "another"})
    fourth.commit(2, fourth.write(2, 0, ["last"]))
    assert stage.read() == sorted([*(row for row in rows(0) if not row.startswith("0-1")), "last", "next"])
    assert len(sink_driver.drivers) == 1, "the previous one is closed"


def test_two_dataframes_under_one_name_are_distinguished_from_a_repeated_one(stage: SinkStage) -> None:
    run = stage.start()
    first = run.for_each_batch()
    first.commit(0, first.write(0, 0, ["a", "b"]), first.write(0, 1, ["c"]))
    again = run.for_each_batch()
    again.commit(0, again.write(0, 0, ["a"]), again.write(0, 1, []), again.write(0, 2, ["c", "b"]))
    other = run.for_each_batch()
    with pytest.raises(SinkError, match=r"batch 0 of this sink was written before .* give each its own sinkName"):
        other.commit(0, other.write(0, 0, ["of", "another", "frame"]))
    assert stage.read() == ["a", "b", "c"]


def test_a_second_driver_on_the_same_checkpoint_is_fenced_inside_foreach_batch_too(stage: SinkStage) -> None:
    first, second = stage.start(), stage.start()
    call = first.for_each_batch()
    call.commit(0, *three_parts(call, 0))
    displaced = first.for_each_batch()
    parts = three_parts(displaced, 1)
    call = second.for_each_batch()
    call.commit(1, *three_parts(call, 1))
    with pytest.raises(NotOwner, match=rf"another driver owns this sink: run {second.name}"):
        displaced.commit(1, *parts)
    assert stage.read() == rows(0, 1)


def test_drivers_without_a_run_id_write_each_batch_once(stage: SinkStage) -> None:
    """If the run is unknown, each write is a separate run and takes over from the previous one."""
    first, second = stage.start(), stage.start()
    parts = three_parts(first, 0)
    second.commit(0, *three_parts(second, 0))
    first.commit(0, *parts)
    third, fourth = stage.start(), stage.start()
    third.decide(1, *three_parts(third, 1))
    fourth.commit(1, *three_parts(fourth, 1))
    assert stage.read() == rows(0, 1)
    assert not stage.is_held_back()


def test_at_most_once_never_writes_a_batch_twice(stage: SinkStage) -> None:
    """Spec: D1. The ledger entry is written first. A crash after it loses the rows; a repeated batch writes nothing."""
    run = stage.start()
    run.write_at_most_once(0, 0, ["a"])
    assert stage.read() == ["a"]
    replayed = stage.start().write_at_most_once(0, 0, ["a"])
    assert replayed.state is BatchState.SETTLED
    assert stage.read() == ["a"]
    with pytest.raises(NotOwner, match="belongs to another query"):
        stage.start(query="another").write_at_most_once(0, 0, ["b"])


def test_at_most_once_loses_what_a_crash_interrupts(
    stage: SinkStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec: D1. The task dies after its ledger entry and before its first row."""
    monkeypatch.setenv("OTTLA_FAILPOINT", f"after-note:fail:{tmp_path / 'failed'}")
    with pytest.raises(RuntimeError, match="failpoint after-note: fail"):
        stage.start().write_at_most_once(0, 0, ["a"])
    assert stage.start().write_at_most_once(0, 0, ["a"]).state is BatchState.SETTLED
    stage.start().write_at_most_once(1, 0, ["b"])
    assert stage.read() == ["b"]


def test_two_phase_commit_can_be_required(target: Target, topic: str) -> None:
    stage = SinkStage(target.bootstrap, topic, twoPhaseCommit="required")
    if target.name == "two-phase":
        run = stage.start()
        run.commit(0, run.write(0, 0, ["a"]))
        assert stage.read() == ["a"]
    else:
        with pytest.raises(SinkError, match="twoPhaseCommit is required, but the brokers do not allow it"):
            stage.start().write(0, 0, ["a"])


def test_a_timeout_above_the_brokers_limit_is_refused_with_both_values(target: Target, topic: str) -> None:
    stage = SinkStage(target.bootstrap, topic, twoPhaseCommit="off", **{"kafka.transaction.timeout.ms": "900001"})
    with pytest.raises(OttlaError, match=r"is 900001; the brokers allow at most 900000"):
        stage.start().write(0, 0, ["a"])


def test_a_missing_topic_is_reported_and_no_transaction_stays_open(
    two_phase_without_auto_creation: Target, topic: str
) -> None:
    target = two_phase_without_auto_creation
    stage = SinkStage(target.bootstrap, topic, **{"kafka.max.block.ms": "5000"})
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.delete_topics([topic])
        with pytest.raises(SinkError, match=rf"{topic}.* Create the topic"):
            stage.start().write(0, 0, ["a"])

        def left() -> list[str]:
            names = [listing.transactional_id for listing in admin.list_transactions(states=["Ongoing"])]
            return [name for name in names if stage.names.task_of(name) is not None]

        eventually(lambda: not left())


@pytest.fixture
def two_phase_without_auto_creation() -> Iterator[Target]:
    settings = {"transaction.two.phase.commit.enable": True, "auto.create.topics.enable": False}
    with Broker.embedded(settings=settings) as running:
        yield Target("two-phase", running.bootstrap, running.pid)
