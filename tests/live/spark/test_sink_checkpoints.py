"""Checkpoints that do not match the sink: a batch id alone does not identify the rows of a batch.

Tasks and driver are called as Spark calls them, on an embedded broker, without Spark. Spec: F2, D1.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StringType, StructField, StructType

from ottla import Admin, Broker
from ottla.spark.sink.errors import LostForGood, LostPart, NotOwner
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.sink import SinkMessage, StreamSink
from ottla.spark.sink.states import BatchState
from tests.support.waiting import eventually, stretched
from tests.support.worlds.sink_stage import SinkRun, SinkStage

SCHEMA = StructType([StructField("value", StringType())])


class Checkpoint:
    """The directory where Spark writes the end offsets of a batch before it runs it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "offsets").mkdir(parents=True)

    def plan(self, batch: int, end: int) -> None:
        lines = ["v1", json.dumps({"batchTimestampMs": end}), json.dumps({"orders": {"0": end}})]
        (self.path / "offsets" / str(batch)).write_text("\n".join(lines), encoding="utf-8")


def run_batch(stage: SinkStage, run: SinkRun, checkpoint: Checkpoint, batch: int, values: Sequence[str]) -> None:
    """One batch of one task, committed through the class that Spark uses."""
    written = {
        "kafka.bootstrap.servers": stage.bootstrap,
        "topic": stage.topic,
        "sinkName": stage.sink,
        "checkpointLocation": str(checkpoint.path),
    }
    sink = StreamSink(SinkOptions.parse(written, True), SCHEMA)
    sink.commit([SinkMessage(run.place(batch, 0), run.write(batch, 0, values))], batch)


def test_a_batch_with_other_end_offsets_than_the_sinks_is_refused(broker: Any, topic: str, tmp_path: Path) -> None:
    """The plan of the newest batch was lost in a power failure, or a backup is one batch old.

    Spark plans batch 1 again, with newer records. Mistaking it for the existing batch 1 would lose d.
    """
    stage, checkpoint = SinkStage(broker.bootstrap, topic), Checkpoint(tmp_path)
    first = stage.start()
    checkpoint.plan(0, end=2)
    run_batch(stage, first, checkpoint, 0, ["a", "b"])
    checkpoint.plan(1, end=3)
    run_batch(stage, first, checkpoint, 1, ["c"])

    again = stage.start()
    run_batch(stage, again, checkpoint, 1, ["c"])  # as it was planned: the usual restart
    assert stage.read() == ["a", "b", "c"]

    checkpoint.plan(1, end=4)
    with pytest.raises(NotOwner, match=r"older than the sink: .* has a batch 1 of this query with other end offsets"):
        run_batch(stage, stage.start(), checkpoint, 1, ["c", "d"])
    assert stage.read() == ["a", "b", "c"]
    checkpoint.plan(1, end=3)
    run_batch(stage, stage.start(), checkpoint, 1, ["c"])  # with the newest checkpoint it continues


def test_at_most_once_refuses_a_checkpoint_that_is_older_than_the_sink(broker: Any, topic: str) -> None:
    """Skipping its batches would lose all their rows."""
    stage = SinkStage(broker.bootstrap, topic)
    run = stage.start()
    for batch in range(3):
        run.write_at_most_once(batch, 0, [f"{batch}"])
    assert stage.start().write_at_most_once(2, 0, ["2"]).state is BatchState.SETTLED
    with pytest.raises(NotOwner, match=r"the checkpoint is older than the sink: this is batch 1, and .* batch 2"):
        stage.start().write_at_most_once(1, 0, ["other rows under an existing batch id"])


def test_the_outcome_of_a_part_that_the_brokers_have_forgotten_is_not_guessed(topic: str) -> None:
    """A driver dies between the commits and the record that they are done, and the query is stopped for a week.

    By then the ledger's offsets and the transactional ids have expired. The rows are in the topic; writing them again
    would duplicate them.
    """
    settings = {
        "transactional.id.expiration.ms": stretched(5_000),
        "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
    }
    with Broker.embedded(settings=settings) as broker:
        stage = SinkStage(broker.bootstrap, topic)
        first = stage.start()
        plan = first.decide(0, first.write(0, 0, ["a"]), first.write(0, 1, ["b"]))
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            for part in plan.commit:
                admin.commit_prepared(part.prepared(stage.names))
            assert stage.read() == ["a", "b"]
            eventually(lambda: not admin.list_transactions())
            admin.delete_groups([stage.names.group(0)])
        with pytest.raises(
            LostPart, match=r"batch 0 was decided .* brokers have forgotten .* part of task 1: .* was stopped"
        ):
            stage.start().write(0, 1, ["b"])
        assert stage.read() == ["a", "b"]
        stage.options = replace(stage.options, lost_parts="replace")  # the user has checked the topic and decides
        again = stage.start()
        again.commit(0, again.write(0, 0, ["a"]), again.write(0, 1, ["b"]))
        assert stage.read() == ["a", "a", "b", "b"]


def test_a_lost_part_that_no_task_has_any_more_is_reported_with_the_fix(broker: Any, topic: str) -> None:
    """The broker dropped a decided part, and the query restarts with fewer tasks: none of them has its rows.

    Restarting it unchanged would never help. Restarting it with as many tasks as before does.
    """
    stage = SinkStage(broker.bootstrap, topic)
    first = stage.start()
    plan = first.decide(0, *(first.write(0, task, [f"{task}"]) for task in range(3)))
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.abort_prepared(plan.commit[2].prepared(stage.names))
    fewer = stage.start()
    with pytest.raises(LostForGood, match=r"part of task 2.* no task .* as many tasks as before"):
        fewer.commit(0, *(fewer.write(0, task, [f"{task}"]) for task in range(2)))
    again = stage.start()
    again.commit(0, *(again.write(0, task, [f"{task}"]) for task in range(3)))
    assert stage.read() == ["0", "1", "2"]
