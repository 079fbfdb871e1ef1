"""`ottla pipeline` as users run it: a process with a child driver, restarts, status, and a clean stop."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ottla import Admin, Broker, Consumer, Producer
from ottla.pipeline.definition.loading import load
from ottla.pipeline.running.failures import SLOW_START
from ottla.pipeline.running.state import StateDirectory
from tests.support.waiting import eventually, until

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
LIMIT_S = 1600
"""A bound for a machine with many times more work than cores; tests wait for events, not for time to pass."""
PRICES = {"apple": 50, "pear": 80, "plum": 20, "fig": 125}


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are remembered in the test's own directory, not in the user's home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of the examples, so that nothing is left in the checkout."""
    left = shutil.ignore_patterns("checkpoints", "*.db", "__pycache__")
    return Path(shutil.copytree(EXAMPLES, tmp_path / "pipelines", ignore=left))


def ottla(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ottla", "pipeline", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


class Run:
    """A `pipeline run --json` in the background."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "ottla", "pipeline", "run", "--json", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.events: list[dict[str, Any]] = []

    def wait_for(self, wanted: Any) -> dict[str, Any]:
        """Reads events until one matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            self.events.append(event)
            if wanted(event):
                return event
        assert self.process.stderr is not None
        raise AssertionError((self.process.wait(), self.process.stderr.read(), self.events))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        run.close()


def orders(first: int, last: int) -> list[bytes]:
    rows = (
        {"id": n, "item": list(PRICES)[n % 4], "quantity": n % 7 + 1, "at": "2026-01-01T00:00:00Z"}
        for n in range(first, last)
    )
    return [json.dumps(row).encode() for row in rows]


def send(bootstrap: str, values: list[bytes], topic: str = "orders") -> None:
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for value in values:
            producer.send(topic, value)


def big(last: int) -> list[int]:
    """The orders that the example keeps."""
    return [n for n in range(last) if (n % 7 + 1) * PRICES[list(PRICES)[n % 4]] >= 500]


KILLER = """
import os, signal

# Spark imports every package pyspark_* in a process of its own, once, to find formats. The first such process dies.
try:
    os.close(os.open("FLAG", os.O_CREAT | os.O_EXCL))
except FileExistsError:
    pass
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_pipeline_runs_on_its_embedded_broker_until_ctrl_c(
    place: Path, runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec: F3, F4, E10. One command; rows and progress in SQLite; one run at a time; status; a clean stop. The process
    in which Spark looks for our format is killed, and nobody notices.
    """
    killer = tmp_path / "path" / "pyspark_killer"
    killer.mkdir(parents=True)
    (killer / "__init__.py").write_text(KILLER.replace("FLAG", str(tmp_path / "killed")))
    monkeypatch.setenv("PYTHONPATH", str(killer.parent), prepend=os.pathsep)
    file = str(place / "big_orders.py")
    with Broker.embedded(StateDirectory(load(Path(file))).broker_data) as before:
        with Admin({"bootstrap.servers": before.bootstrap}) as admin:
            admin.create_topic("orders", partitions=2)
        send(before.bootstrap, [*orders(0, 500), b"bad"])
    run = Run(file, "--master", "local[2]")
    runs.append(run)
    first = run.wait_for(lambda event: event["event"] == "batch")
    assert (first["rows_in"], first["rows_out"], first["bad"]) == (501, len(big(500)), {"orders": 1})

    refused = ottla("run", file)
    assert refused.returncode == 2
    assert f"already running: process {run.process.pid}" in refused.stderr
    looks: list[dict[str, Any]] = []

    def is_shown() -> bool:
        """The state file follows with the next heartbeat, and the lag is missing if the broker is slow to answer."""
        looks.append(json.loads(ottla("status", file, "--json").stdout))
        return bool(looks[-1]["phase"] == "running") and looks[-1]["queries"][0]["lag"] == {"orders": 0}

    assert until(is_shown, LIMIT_S), looks[-1]
    seen = looks[-1]
    assert (seen["is_running"], seen["pid"]) == (True, run.process.pid)
    (query,) = seen["queries"]
    assert query["group"] == "big_orders"
    assert query["ledger_batch"] == 0

    send(seen["bootstrap"], orders(500, 600))
    run.wait_for(lambda event: event["event"] == "batch" and sum(event["positions"]["orders"].values()) == 601)
    run.process.send_signal(signal.SIGINT)
    run.wait_for(lambda event: event["event"] == "stopped")
    assert run.process.wait(LIMIT_S) == 0
    assert (tmp_path / "killed").exists()
    # On a busy machine a Python process may take too long to start, again and again.
    restarts = [event["cause"] for event in run.events if event["event"] == "restarting"]
    assert all(SLOW_START in cause for cause in restarts), restarts

    with contextlib.closing(sqlite3.connect(place / "big_orders.db")) as database:
        assert [n for (n,) in database.execute("select id from big_orders order by id")] == big(600)
        ((positions,),) = database.execute("select positions from ottla_ledger").fetchall()
    assert sum(json.loads(positions)["orders"].values()) == 601
    shown = ottla("status", "big_orders")
    assert shown.returncode == 0
    assert "stopped" in shown.stdout
    assert "not running" in shown.stdout
    assert "exactly-once" in shown.stdout
    assert "the embedded broker runs only while the pipeline runs" in shown.stdout


SLOW = """
from pathlib import Path

from ottla.pipeline import pipeline, topic

HERE = Path(__file__).parent
BRIEF = {"kafkaConsumer.pollTimeoutMs": "3000", "kafka.default.api.timeout.ms": "4000"}


@pipeline(source=topic("orders", schema="id bigint", options=BRIEF), sink=topic("copies"), checkpoint="checkpoint")
def slow(orders):
    from pyspark.sql import functions as f
    here = str(HERE)

    def take(id):
        import time
        from pathlib import Path

        word = Path(here, "word")
        if id < FIRST_SLOW:
            return id
        Path(here, "began").touch()
        while not word.exists():
            time.sleep(0.05)
        if word.read_text() == "fail":
            raise ValueError("no such order")
        return id

    return orders.select(f.udf(take, "bigint")("id").cast("string").alias("value"))
"""


class SlowPipeline:
    """A pipeline from topic orders to topic copies, with batches that wait for a signal from the test."""

    def __init__(self, directory: Path, bootstrap: str, runs: list[Run], *, first_slow: int) -> None:
        self.directory, self.bootstrap, self.runs = directory, bootstrap, runs
        (directory / "slow.py").write_text(SLOW.replace("FIRST_SLOW", str(first_slow)))
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.create_topic("orders", partitions=1)
            admin.create_topic("copies", partitions=1)

    def start(self) -> Run:
        run = Run(str(self.directory / "slow.py"), "--master", "local[1]", "-b", self.bootstrap)
        self.runs.append(run)
        return run

    def stop_in_a_batch(self, run: Run, then: str) -> None:
        """Ctrl-C while a batch is being processed; after that the batch continues or fails."""
        began, word = self.directory / "began", self.directory / "word"
        assert until(lambda: began.exists() or run.process.poll() is not None, LIMIT_S)
        assert began.exists()
        run.process.send_signal(signal.SIGINT)
        run.wait_for(lambda event: event["event"] == "stopping")
        draft = word.with_suffix(".draft")
        draft.write_text(then)
        draft.rename(word)

    def copies(self) -> list[int]:
        with Consumer({"bootstrap.servers": self.bootstrap, "isolation.level": "read_committed"}) as consumer:
            consumer.assign([("copies", 0)])
            consumer.seek_to_beginning()
            (end,) = consumer.end_offsets(consumer.assignment()).values()
            found: list[int] = []

            def is_at_the_end() -> bool:
                found.extend(int(record.value or b"") for record in consumer.poll(200))
                return consumer.position(("copies", 0)) >= end

            eventually(is_at_the_end, LIMIT_S)
        return found


@pytest.mark.long  # test_sink_outages.py covers outages in the default lane
def test_a_pipeline_resumes_after_an_outage_and_finishes_its_batch_after_ctrl_c(
    tmp_path: Path, runs: list[Run]
) -> None:
    """Spec: F4. The broker is away longer than the source waits: the driver ends and is restarted, and no record is
    written twice. Ctrl-C in the middle of a batch lets the batch finish.
    """
    data = tmp_path / "broker"
    with Broker.embedded(data) as broker:
        address = broker.bootstrap
        pipeline = SlowPipeline(tmp_path, address, runs, first_slow=50)
        send(address, orders(0, 50))
        run = pipeline.start()
        run.wait_for(lambda event: event["event"] == "batch" and event["positions"] == {"orders": {"0": 50}})
    # A restart for another reason is possible: a Python process that takes too long to start on a busy machine.
    run.wait_for(lambda event: event["event"] == "restarting" and event["cause"].startswith("no broker answered"))
    with Broker.embedded(data, listen=address):
        send(address, orders(50, 80))
        pipeline.stop_in_a_batch(run, "go on")
        run.wait_for(lambda event: event["event"] == "batch" and event["positions"] == {"orders": {"0": 80}})
        run.wait_for(lambda event: event["event"] == "stopped")
        assert run.process.wait(LIMIT_S) == 0
        assert pipeline.copies() == list(range(80))
    assert (tmp_path / "checkpoint" / "slow" / "commits" / "1").exists()


@pytest.mark.slow
@pytest.mark.long
def test_a_batch_that_fails_after_ctrl_c_is_reported_and_repeated_by_the_next_run(
    tmp_path: Path, runs: list[Run]
) -> None:
    with Broker.embedded() as broker:
        pipeline = SlowPipeline(tmp_path, broker.bootstrap, runs, first_slow=0)
        send(broker.bootstrap, orders(0, 10))
        failed = pipeline.start()
        pipeline.stop_in_a_batch(failed, "fail")
        event = failed.wait_for(lambda event: event["event"] == "failed")
        assert "no such order" in event["cause"]
        _, printed = failed.process.communicate(timeout=LIMIT_S)
        assert failed.process.returncode == 1
        assert b"no such order" in printed
        assert b"Traceback" not in printed

        (tmp_path / "began").unlink()
        (tmp_path / "word").unlink()
        again = pipeline.start()
        pipeline.stop_in_a_batch(again, "go on")
        batch = again.wait_for(lambda event: event["event"] == "batch")
        assert (batch["batch_id"], batch["rows_in"], batch["rows_out"]) == (0, 10, 10)
        again.wait_for(lambda event: event["event"] == "stopped")
        assert again.process.wait(LIMIT_S) == 0
        assert pipeline.copies() == list(range(10))


DEMO = f"""
import sys

from ottla.cli.demo import command
from ottla.cli.main import main

command.LIMIT_S = {LIMIT_S}
sys.exit(main(["demo", *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_the_demo_kills_everything_and_proves_that_every_order_counts_once() -> None:
    """Spec: F2, F4. Enrichment and a windowed sum, exactly once although workers, the broker and the driver are
    killed. The killed attempts left rows that nobody with read_committed sees; at-least-once wrote rows twice.
    """
    command = [sys.executable, "-c", DEMO, "--orders", "6000", "--rate", "6000", "--master", "local[2,4]"]
    ran = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert [kill["killed"] for kill in result["kills"]] == ["worker", "broker", "driver"]
    assert all(kill["back_after_s"] is not None and kill["left_uncommitted"] > 0 for kill in result["kills"])
    assert result["restarts"] >= 1
    enriched, revenue, plain = result["outputs"]
    assert (enriched["found"], enriched["duplicates"], enriched["missing"], enriched["wrong"]) == (6000, 0, 0, 0)
    assert enriched["aborted"] > 0
    assert revenue["found"] == revenue["expected"]
    assert not revenue["duplicates"]
    assert not revenue["wrong"]
    assert enriched["found_sum"] == revenue["found_sum"] == enriched["expected_sum"] > 0
    assert (plain["missing"], plain["wrong"], plain["found"]) == (0, 0, 6000 + plain["duplicates"])
    assert plain["duplicates"] > 0
    assert plain["aborted"] == 0


def test_mistakes_are_reported_before_spark_is_started(
    place: Path, broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(place / "revenue.yaml")
    wrong = ottla("run", file, "--set", "source.topc=x")
    assert wrong.returncode == 2
    assert "source.topc: unknown key (Did you mean topic?)" in wrong.stderr
    missing = ottla(
        "run", file, "-b", broker.bootstrap, "--set", f"source.topic={topic}", "--set", "source.name=orders"
    )
    assert missing.returncode == 2
    assert f"there is no topic {topic} at {broker.bootstrap}" in missing.stderr
    unreachable = ottla("run", file, "-b", "127.0.0.1:1")
    assert unreachable.returncode == 1
    assert "127.0.0.1:1" in unreachable.stderr
    remote = ottla("run", str(place / "big_orders.py"), "--master", "spark://host:7077")
    assert remote.returncode == 2
    assert "SQLite is a local file" in remote.stderr
    # Neither needs Spark, and there is no Java for it.
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    quick = ottla("validate", file, "--no-spark")
    assert (quick.returncode, "is valid" in quick.stdout) == (0, True)
    assert "not checked: schemas, SQL and the columns of the sink (--no-spark)" in quick.stdout
    topics = ottla("validate", file, "-b", broker.bootstrap, "--set", f"source.topic={topic}")
    assert topics.returncode == 1
    assert f"there is no topic {topic} at {broker.bootstrap}" in topics.stdout
    assert "schemas and SQL are checked once this is fixed" in topics.stdout
    unknown = ottla("status", "nothing-of-this-name")
    assert unknown.returncode == 1
    assert "pipeline nothing-of-this-name has not run on this machine" in unknown.stderr
    assert not any("Traceback" in each.stderr for each in (wrong, missing, unreachable, remote, quick, topics, unknown))
