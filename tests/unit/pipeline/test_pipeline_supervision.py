"""How a supervisor reacts to its driver's events: when it restarts the driver, after which delay, and how it stops."""

import queue
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client.transactions.errors import TransactionAbortable
from ottla.errors import ErrorCode, KafkaError
from ottla.pipeline.definition.loading import load
from ottla.pipeline.definition.model import Output, Pipeline
from ottla.pipeline.running import queries as module_of_queries
from ottla.pipeline.running import supervisor as supervision
from ottla.pipeline.running.failures import Failure, QueryFailed, failure_of
from ottla.pipeline.running.progress import Batch
from ottla.pipeline.running.queries import Queries, Running
from ottla.pipeline.running.state import StateDirectory
from ottla.pipeline.running.supervisor import Supervisor
from ottla.spark.explaining import ExplainedError, explained
from ottla.spark.sink.decisions import Digest, check_same, is_lost
from ottla.spark.sink.errors import LostPart

FILE = """\
source: orders
outputs:
  topic: {sql: select 1, sink: t}
  table: {sql: select 1, sink: u}
"""
STARTED = {"event": "started", "queries": {}}
ENDED = {"event": "ended"}


class Scripted:
    """A driver with scripted events."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.process = SimpleNamespace(pid=0)
        self.events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.asked: list[str] = []
        for event in (*events, None):
            self.events.put(event)

    def stop(self) -> None:
        self.asked.append("stop")

    def kill(self) -> None:
        self.asked.append("kill")

    def close(self) -> int:
        return -9 if "kill" in self.asked else 3


class Supervised(Supervisor):
    """A supervisor with scripted drivers and without delays. Ctrl-C is pressed at the named events."""

    def __init__(self, place: Path, lives: list[Scripted], **more: Any) -> None:
        file = place / "shop.yaml"
        file.write_text(FILE)
        made = load(file)
        self.ctrl_c_at: list[str] = []
        self.waits: list[float] = []
        self.lives = iter(lives)
        super().__init__(made, StateDirectory(made), bootstrap="127.0.0.1:1", job={}, on_event=self.hear, **more)

    def hear(self, event: dict[str, Any], _: Any) -> None:
        if event["event"] in self.ctrl_c_at:
            self.request_stop()

    def _pause(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return False


Begin = Callable[..., Supervised]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    def begin(*lives: Scripted, **more: Any) -> Supervised:
        made = Supervised(tmp_path, list(lives), **more)
        monkeypatch.setattr(supervision, "Driver", lambda *_: next(made.lives))
        return made

    return begin


def batch(query: str, number: int) -> dict[str, Any]:
    return {"event": "batch", "batch": Batch(query, number, 1, 1, 10, 10).document()}


def failed(query: str, error: Exception) -> dict[str, Any]:
    return {"event": "failed", **failure_of(QueryFailed(query, error)).document()}


def away() -> Exception:
    """What Spark raises for a query whose brokers were unreachable for too long."""
    with pytest.raises(ExplainedError) as caught, explained("b:1"):
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no broker answered at b:1 within 60000 ms")
    name = f"{type(caught.value).__module__}.{type(caught.value).__name__}"
    return RuntimeError(f"[STREAM_FAILED] latestOffset: {name}: {caught.value} SQLSTATE: 38000\n\tat org")


def test_a_pipeline_survives_an_outage_that_ends_its_driver(begin: Begin) -> None:
    outage = [Scripted(failed("topic", away())) for _ in range(4)]
    run = begin(*outage, Scripted(batch("topic", 1), failed("topic", away())), Scripted(batch("topic", 2), ENDED))
    assert run.run() is None
    assert run.waits == [1, 2, 4, 8, 1], "the first batch after the outage resets the delay"
    assert (run.run_state.phase, run.run_state.restarts) == ("ended", 5)
    assert (run.run_state.last_failure or "").startswith("no broker answered at b:1 within 60000 ms. Is a broker")


def test_an_output_that_always_fails_ends_the_run_even_if_the_other_works(begin: Begin) -> None:
    gone = RuntimeError("x ottla.spark.database.connections.DatabaseUnavailable: cannot connect to x.")
    run = begin(*(Scripted(batch("topic", n), failed("table", gone)) for n in range(9)), max_restarts=4)
    assert run.run() == Failure("cannot connect to x.", query="table")
    assert run.waits == [1, 2, 4, 8]
    assert run.run_state.phase == "failed"


def of_spark(error: Exception) -> Exception:
    """What Spark raises for a query whose task or commit raised this."""
    return RuntimeError(f"[STREAM_FAILED] x {type(error).__module__}.{type(error).__name__}: {error} SQLSTATE: 38000")


def test_a_lost_part_that_a_restart_writes_again_is_retried(begin: Begin) -> None:
    dropped = LostPart("batch 7 was decided, and the broker no longer has the part of task 1")
    run = begin(Scripted(failed("topic", of_spark(dropped))), Scripted(batch("topic", 7), ENDED))
    assert run.run() is None
    assert run.waits == [1]


@pytest.mark.parametrize(
    ("code", "helps"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, True),
        (ErrorCode.TRANSACTION_ABORTABLE, True),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, True),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
        (ErrorCode.MESSAGE_TOO_LARGE, False),
    ],
)
def test_a_batch_whose_transaction_timed_out_is_retried(begin: Begin, code: ErrorCode, helps: bool) -> None:
    """For example after a laptop slept longer than transaction.timeout.ms in the middle of a batch."""
    error = TransactionAbortable(code, "orders-1 is not known as part of a transaction of 'sink-0'")
    run = begin(Scripted(failed("topic", of_spark(error))), Scripted(batch("topic", 7), ENDED))
    assert (run.run() is None, run.waits) == ((True, [1]) if helps else (False, []))


@pytest.mark.parametrize(
    "meet",
    [
        lambda: check_same(Digest(3, 15, 7), Digest(1, 5, 2), 1),
        lambda: is_lost({}, 1, "query", 7, is_known=False),
    ],
    ids=["the retry has other rows", "its outcome is unknown"],
)
def test_a_part_that_no_restart_can_recover_ends_the_run_immediately(begin: Begin, meet: Callable[[], Any]) -> None:
    """Ten restarts would take five minutes and end with the same error."""
    with pytest.raises(LostPart) as caught:
        meet()
    run = begin(Scripted(failed("topic", of_spark(caught.value))))
    failure = run.run()
    assert failure is not None
    assert "lostParts=replace" in failure.cause
    assert (run.waits, run.run_state.phase) == ([], "failed")


def test_after_a_driver_died_without_an_error_any_batch_resets_the_delay(begin: Begin) -> None:
    run = begin(*(Scripted(batch("topic", n)) for n in range(5)), Scripted(ENDED), max_restarts=1)
    assert run.run() is None
    assert run.waits == [1] * 5


def test_a_clean_stop_is_not_a_failure(begin: Begin) -> None:
    driver = Scripted(STARTED, batch("topic", 1), ENDED)
    run = begin(driver)
    run.ctrl_c_at = ["started"]
    assert run.run() is None
    assert driver.asked == ["stop"]
    assert run.run_state.phase == "stopped"


@pytest.mark.parametrize("retriable", [True, False])
def test_a_stop_whose_last_batch_fails_reports_it_and_does_not_restart(begin: Begin, retriable: bool) -> None:
    error = away() if retriable else RuntimeError("[USER_RAISED_EXCEPTION] bad record in orders-0 at offset 5")
    run = begin(Scripted(STARTED, failed("topic", error)))
    run.ctrl_c_at = ["started"]
    failure = run.run()
    assert failure is not None
    assert failure.retriable is retriable
    assert failure.query == "topic"
    assert (run.run_state.phase, run.run_state.last_failure, run.waits) == ("failed", failure.cause, [])


def test_a_second_stop_ends_the_run_immediately_in_the_middle_of_a_batch(begin: Begin) -> None:
    driver = Scripted(STARTED, batch("topic", 1))
    run = begin(driver)
    run.ctrl_c_at = ["started", "batch"]
    assert run.run() is None
    assert driver.asked == ["stop", "kill"]
    assert run.run_state.phase == "stopped"


# --- the queries of a driver that stops ----------------------------------------------------------------------


class InBatch:
    """A query that is in the middle of a batch for a few status checks; then the batch is done, or the query failed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.looks = 3
        self.is_stopped = False

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        if self.looks or self.error is not None:
            return None
        moment = "2026-11-15T12:00:00.500Z"
        return {"batchId": 0, "timestamp": moment, "durationMs": {"addBatch": 1, "triggerExecution": 2}}

    @property
    def status(self) -> dict[str, bool]:
        self.looks = max(0, self.looks - 1)
        return {"isTriggerActive": bool(self.looks)}

    @property
    def isActive(self) -> bool:
        return not self.is_stopped and (self.looks > 0 or self.error is None)

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.is_stopped = True


def finish(**running: InBatch) -> list[Batch]:
    queries = Queries(SimpleNamespace(pipeline=None), once=False)  # type: ignore[arg-type]
    queries.running = [Running(name, query) for name, query in running.items()]  # type: ignore[arg-type]
    batches: list[Batch] = []
    queries._finish(batches.append)  # noqa: SLF001
    return batches


def test_queries_finish_their_current_batch() -> None:
    topic, table = InBatch(), InBatch()
    assert [(batch.query, batch.batch_id) for batch in finish(topic=topic, table=table)] == [("topic", 0), ("table", 0)]
    assert topic.is_stopped
    assert table.is_stopped


def test_a_batch_that_fails_after_the_stop_is_reported_once_the_others_are_done() -> None:
    table = InBatch()
    with pytest.raises(QueryFailed, match="topic: no room") as caught:
        finish(topic=InBatch(RuntimeError("no room")), table=table)
    assert failure_of(caught.value) == Failure("no room", query="topic")
    assert table.is_stopped


# --- the queries of a driver that starts ---------------------------------------------------------------------


class Starting:
    """A query whose source is up after a few status checks, or that fails instead."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.looks, self.name = error, 3, "topic"

    @property
    def status(self) -> dict[str, str]:
        self.looks = max(0, self.looks - 1)
        return {"message": "Initializing sources" if self.looks else "Waiting for data to arrive"}

    @property
    def isActive(self) -> bool:
        return self.looks > 0 or self.error is None

    def exception(self) -> Exception | None:
        return self.error


SLOW = RuntimeError(
    "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: X"
)


def start_all(monkeypatch: pytest.MonkeyPatch, made: Pipeline, plan: dict[str, list[Starting]]) -> list[str]:
    """The order in which the queries of a pipeline are started; `plan` has the starts of each."""
    started: list[str] = []
    queries = Queries(SimpleNamespace(pipeline=made, spark=None), once=False)  # type: ignore[arg-type]

    def start(output: Output) -> Starting:
        assert all(query.looks == 0 for query in queries_so_far), "the one before is up"
        started.append(output.name)
        queries_so_far.append(plan[output.name].pop(0))
        return queries_so_far[-1]

    queries_so_far: list[Starting] = []
    monkeypatch.setattr(module_of_queries, "make_active", lambda _: None)
    monkeypatch.setattr(queries, "_start_output", start)
    queries.start()
    assert [each.name for each in queries.running] == list(made.outputs)
    return started


def test_queries_start_one_after_the_other_and_only_a_slow_one_again(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a Python process may take longer to start than the ten seconds that Spark waits."""
    plan = {"topic": [Starting(SLOW), Starting(SLOW), Starting()], "table": [Starting()]}
    assert start_all(monkeypatch, begin().made, plan) == ["topic", "topic", "topic", "table"]


def test_a_query_that_fails_for_another_reason_is_not_started_again(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"topic": [Starting(RuntimeError("no such column"))], "table": [Starting()]}
    assert start_all(monkeypatch, begin().made, plan) == ["topic", "table"]


def test_a_query_that_is_always_slow_is_left_to_the_supervisor(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"topic": [Starting(SLOW) for _ in range(9)], "table": [Starting()]}
    assert start_all(monkeypatch, begin().made, plan) == ["topic"] * 6 + ["table"]
    assert failure_of(SLOW).retriable
