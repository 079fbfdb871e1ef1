"""Batch writes under one sinkName, one after the other: tasks and driver called as Spark calls them. Spec: F2."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from ottla.spark.sink import driver as sink_driver
from ottla.spark.sink.clients import run
from ottla.spark.sink.driver import Batch
from ottla.spark.sink.errors import SinkError
from ottla.spark.sink.tasks import Place, Written
from tests.support.waiting import eventually
from tests.support.worlds.sink_stage import SinkRun, SinkStage, end_drivers

_runs = itertools.count(1)


class Job(SinkRun):
    """One start of a batch write."""

    def __init__(self, stage: SinkStage, job: str) -> None:
        end_drivers()
        super().__init__(stage, job, f"job-run-{next(_runs)}")

    def place(self, batch: int, task: int) -> Place:
        return replace(super().place(batch, task), is_job=True)

    def _batch(self, batch: int, written: Any) -> Batch:
        return replace(super()._batch(batch, written), is_job=True)

    def part(self, task: int) -> Written:
        return self.write(0, task, [f"{self.query}-{task}"])

    def abort_without(self, silent: list[int], *written: Written) -> None:
        run(sink_driver.driver(self.stage.options, self.stage.sink).abort(self._batch(0, written), silent))


def test_a_job_repeated_after_a_smaller_one_is_refused_as_a_whole(broker: Any, topic: str) -> None:
    """The smaller job replaced only the first task's ledger entry, so the others still look written."""
    stage = SinkStage(broker.bootstrap, topic)
    for job, tasks in (("a", 3), ("b", 1)):
        started = Job(stage, job)
        started.commit(0, *(started.part(task) for task in range(tasks)))
    there = ["a-0", "a-1", "a-2", "b-0"]
    assert stage.read() == there
    again = Job(stage, "a")
    for task in range(3):
        with pytest.raises(SinkError, match="job a was written to this sink before job b"):
            again.part(task)
    assert stage.read() == there
    third = Job(stage, "c")
    third.commit(0, *(third.part(task) for task in range(2)))
    assert stage.read() == [*there, "c-0", "c-1"]


def test_a_job_that_fails_after_another_leaves_nothing_open(broker: Any, topic: str) -> None:
    """A task was killed after its last row. Only the driver's abort ends its open transaction."""
    stage = SinkStage(broker.bootstrap, topic)
    first = Job(stage, "a")
    first.commit(0, first.part(0))
    failed = Job(stage, "b")
    reported, _killed = failed.part(0), failed.part(1)
    assert stage.is_held_back()
    failed.abort_without([1], reported)
    eventually(lambda: not stage.is_held_back())
    assert stage.read() == ["a-0"]
