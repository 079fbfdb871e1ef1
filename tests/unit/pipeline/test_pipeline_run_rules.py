"""Rules of a run: how failures are classified, restart delays, the lock, and Spark's progress reports."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import OttlaError
from ottla.pipeline.definition.loading import load
from ottla.pipeline.definition.model import Pipeline
from ottla.pipeline.definition.problems import PipelineError, Problem
from ottla.pipeline.running.failures import Failure, QueryFailed, explain, failure_of
from ottla.pipeline.running.lag import lag_between
from ottla.pipeline.running.progress import batch_of, positions_in
from ottla.pipeline.running.restarts import Restarts
from ottla.pipeline.running.state import (
    AlreadyRunning,
    QueryState,
    RunState,
    StateDirectory,
    recall,
    remember,
)
from ottla.spark.database.connections import DatabaseUnavailable
from ottla.spark.explaining import BrokersUnavailable
from ottla.types import TopicPartition


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "shop.yaml"
    path.write_text("source: orders\nsql: select 1\nsink: t\n")
    return load(path)


def test_restart_delays_double_and_a_batch_resets_them() -> None:
    restarts = Restarts(max_in_a_row=8)
    failure = Failure("unreachable")
    assert [restarts.delay_after(failure) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert restarts.delay_after(failure) is None
    assert restarts.total == 8
    restarts.on_batch("shop")
    assert restarts.delay_after(failure) == 1
    assert restarts.delay_after(Failure("a mistake", retriable=False)) is None


def test_batches_of_another_query_do_not_reset_the_delay() -> None:
    restarts = Restarts(max_in_a_row=3)
    gone, away = Failure("no such host", query="table"), Failure("no broker answered", query="topic")
    assert restarts.delay_after(gone) == 1
    restarts.on_batch("topic")
    assert restarts.delay_after(gone) == 2
    restarts.on_batch("topic")
    assert restarts.delay_after(away) == 4, "for any query"
    restarts.on_batch("table")
    assert restarts.delay_after(gone) is None, "the other one has not completed a batch yet"
    restarts.on_batch("topic")
    restarts.on_batch("table")
    assert restarts.delay_after(gone) == 1


def test_a_long_run_without_records_resets_the_delay() -> None:
    restarts = Restarts(max_in_a_row=2)
    away = Failure("no broker answered", query="quiet")
    assert [restarts.delay_after(away, lived_s=3600) for _ in range(5)] == [1] * 5, "five outages in five days"
    assert [restarts.delay_after(away, lived_s=200) for _ in range(2)] == [2, None]


@pytest.mark.parametrize(
    ("text", "cause", "retriable"),
    [
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed: Traceback\n"
            "ottla.spark.database.connections.DatabaseUnavailable: cannot connect to x. Is it up?\n SQLSTATE: 38000\n"
            "=== Streaming Query ===\nId: 1",
            "cannot connect to x. Is it up?",
            True,
        ),
        (
            "x ottla.errors.OttlaError: table t has no column a. Add it. SQLSTATE: 38000",
            "table t has no column a. Add it.",
            False,
        ),
        ("x ottla.spark.sink.errors.NotOwner: Another driver has it.", "Another driver has it.", False),
        (
            "x pyspark.errors.PySparkTypeError: a ottla.errors.OttlaError: no such column. SQLSTATE: 38000\n"
            " SQLSTATE: XXKST",
            "no such column.",
            False,
        ),
        ("x ottla.errors.KafkaError: TOPIC_AUTHORIZATION_FAILED: orders", "TOPIC_AUTHORIZATION_FAILED: orders", False),
        (
            "[STREAM_FAILED] Q terminated: Job aborted: [USER_RAISED_EXCEPTION] bad record in orders-0 at "
            "offset 5: no SQLSTATE: P0001",
            "bad record in orders-0 at offset 5: no",
            False,
        ),
        ("[STREAM_FAILED] Q terminated: [TASK_LOST] it went away. SQLSTATE: X\n\tat y", "it went away.", True),
        (
            "requirement failed: sink does not support Update mode. SQLSTATE: XXKST",
            "sink does not support Update mode.",
            False,
        ),
        (
            "[PYTHON_EXCEPTION] It was thrown: Traceback (most recent call last):\n  File x, line 1\n    y()\n"
            "KeyError: 'item'\n\n\tat org.apache",
            "KeyError: 'item'",
            True,
        ),
        ("something odd\nand more", "something odd", True),
    ],
)
def test_a_failure_is_one_line_and_retriable_or_not(text: str, cause: str, retriable: bool) -> None:
    assert explain(text) == Failure(cause, explain(text).hint, retriable)


@pytest.mark.parametrize(
    "error", [DatabaseUnavailable("it is down", "Start it."), BrokersUnavailable("no broker answered")]
)
def test_unreachable_brokers_and_databases_are_retriable(error: OttlaError) -> None:
    assert failure_of(error) == Failure(error.message, error.hint, retriable=True)
    assert failure_of(QueryFailed("shop", error)) == Failure(error.message, error.hint, query="shop")


def test_mistakes_of_the_user_are_not_retried() -> None:
    error = PipelineError([Problem("a.yaml", 3, "sql", "no such column", "Fix it.")])
    assert failure_of(error) == Failure("a.yaml:3: sql: no such column", "Fix it.", retriable=False)
    mistake = AnalysisException("[UNRESOLVED_COLUMN] A column cannot be resolved. SQLSTATE: 42703")
    assert failure_of(mistake) == Failure("A column cannot be resolved.", retriable=False)


class AnalysisException(Exception):
    """Spark raises one of this name for mistakes in a query, and for the Python processes that it asks about it."""


AWAY = "ottla.spark.explaining.BrokersUnavailable: no broker answered: 30 s went by. Is a broker running?"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"[PYTHON_DATA_SOURCE_ERROR] Failed to create: {AWAY} SQLSTATE: 38000", AWAY.partition(": ")[2]),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed when using Python data source: Python worker exited unexpectedly "
            "(crashed). SQLSTATE: 38000",
            "Failed when using Python data source: Python worker exited unexpectedly (crashed).",
        ),
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: ottla. Make sure the provider name is correct. "
            "SQLSTATE: 42K02",
            "Failed to find the data source: ottla. Make sure the provider name is correct.",
        ),
        ("Python worker failed to connect back.", "Python worker failed to connect back."),
        (
            "[DATA_SOURCE_NOT_EXIST] Data source 'ottla' not found. Please make sure the data source is registered. "
            "SQLSTATE: 42704",
            "Data source 'ottla' not found. Please make sure the data source is registered.",
        ),
    ],
)
def test_an_error_that_can_go_away_is_retried_whatever_its_kind(text: str, cause: str) -> None:
    """Spark raises AnalysisException also if a Python process was killed or the brokers did not answer it."""
    assert failure_of(AnalysisException(text)) == Failure(cause, retriable=True)


@pytest.mark.parametrize(
    "text",
    [
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: ottlax. SQLSTATE: 42K02",
        "[PYTHON_DATA_SOURCE_ERROR] x ottla.spark.explaining.ExplainedError: there is no topic ordes. SQLSTATE: 38000",
    ],
)
def test_an_error_that_stays_ends_the_run(text: str) -> None:
    assert not failure_of(AnalysisException(text)).retriable


def test_a_progress_report_of_spark_becomes_a_batch() -> None:
    report = {
        "batchId": 7,
        "timestamp": "2026-11-15T12:00:00.500Z",
        "numInputRows": 100,
        "durationMs": {"addBatch": 900, "triggerExecution": 1500},
        "eventTime": {"watermark": "2026-11-15T11:59:00.000Z"},
        "observedMetrics": {"ottla_out": {"rows": 12}, "ottla_bad_orders": {"rows": 3}, "ottla_bad_paid": {"rows": 0}},
        "sources": [
            {"endOffset": '{"orders": {"0": 60, "1": 40}, "@group": "g"}'},
            {"endOffset": {"paid": {"0": 5}, "@ids": {"paid": "x"}}},
        ],
        "stateOperators": [{"numRowsTotal": 4}, {"numRowsTotal": 2}],
    }
    batch = batch_of("revenue", report)
    assert (batch.rows_in, batch.rows_out, batch.bad) == (100, 12, {"orders": 3})
    assert batch.positions == {"orders": {"0": 60, "1": 40}, "paid": {"0": 5}}
    assert batch.ended_ms == 1_794_744_002_000
    assert batch.state_rows == 6
    assert positions_in(['{"a": {"0": 1}, "@group": "g"}', "-", '{"b": {"2": 3}}']) == {"a": {"0": 1}, "b": {"2": 3}}


def test_lag_is_the_distance_from_positions_to_ends() -> None:
    ends = {TopicPartition("a", 0): 10, TopicPartition("a", 1): 4, TopicPartition("b", 0): 9}
    assert lag_between({"a": {"0": 7}}, ends) == 7, "a partition without a position lags by all its records"
    assert lag_between({"a": {"0": 12, "1": 4}}, ends) == 0
    assert lag_between({"c": {}}, ends) is None


def test_only_one_run_holds_the_lock_and_the_error_names_its_process(made: Pipeline) -> None:
    state = StateDirectory(made)
    assert not state.is_locked()
    with state.lock(made.name):
        assert state.is_locked()
        with (
            pytest.raises(AlreadyRunning, match=f"pipeline shop is already running: process {os.getpid()}"),
            state.lock("shop"),
        ):
            pass
    assert not state.is_locked()


def test_the_state_of_a_run_is_read_back_unchanged(made: Pipeline) -> None:
    state = StateDirectory(made)
    assert state.read() is None
    run = RunState(
        "shop", made.file, 1, "here", "b:1", {"shop": "exactly-once"}, 5, queries={"shop": QueryState(batch_id=3)}
    )
    state.write(run)
    assert state.read() == run
    document = json.loads(state.run_file.read_text()) | {"from a later version": 1}
    state.run_file.write_text(json.dumps(document))
    assert state.read() == run
    state.run_file.write_text("{half")
    assert state.read() is None


def test_a_pipeline_is_found_by_its_name(made: Pipeline) -> None:
    assert recall("shop") is None
    remember(made)
    assert recall("shop") == Path(made.file).absolute()


def test_the_state_of_a_remote_checkpoint_is_in_the_home_directory(made: Pipeline, tmp_path: Path) -> None:
    from dataclasses import replace

    far = StateDirectory(replace(made, checkpoint="hdfs://host/x"))
    assert far.path.is_relative_to(tmp_path / "state")


def test_a_status_check_is_not_mistaken_for_a_run(made: Pipeline) -> None:
    """Two status checks at the same moment, and a run that begins meanwhile."""
    directory = StateDirectory(made)
    with directory.lock("shop"):
        assert directory.is_locked()
    begin = threading.Barrier(3)

    def look() -> list[bool]:
        begin.wait()
        return [directory.is_locked() for _ in range(3000)]

    with ThreadPoolExecutor(2) as pool:
        looks = [pool.submit(look) for _ in range(2)]
        begin.wait()
        assert not any(any(each.result()) for each in looks)
    with ThreadPoolExecutor(1) as pool:
        begin = threading.Barrier(2)
        looking = pool.submit(look)
        begin.wait()
        for _ in range(300):
            with directory.lock("shop"):
                pass
        looking.result()


def test_a_user_with_read_access_only_sees_that_a_pipeline_runs(
    made: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is a file that only the owner of the run can write."""
    directory = StateDirectory(made)

    def of_another(path: Any, flags: int, *more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *more)

    opened = os.open
    with directory.lock("shop"):
        monkeypatch.setattr(os, "open", of_another)
        assert directory.is_locked()
    assert not directory.is_locked()
