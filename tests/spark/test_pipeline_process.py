"""`ottla pipeline` as people run it: a process with a driver under it, killed, started again, asked, and stopped."""

import json
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

from ottla import Admin, Broker, Producer
from ottla.clock import monotonic
from ottla.pipeline.loading import load
from ottla.pipeline.state import StateDirectory

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
PATIENCE_S = 200
PRICES = {"apple": 50, "pear": 80, "plum": 20, "fig": 125}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples, so that nothing is left in the checkout."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    left = shutil.ignore_patterns("checkpoints", "*.db", "__pycache__")
    return Path(shutil.copytree(EXAMPLES, tmp_path / "pipelines", ignore=left))


def ottla(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ottla", "pipeline", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


class Run:
    """A `pipeline run --json` in the background."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "ottla", "pipeline", "run", "--json", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.events: list[dict[str, Any]] = []

    def wait_for(self, wanted: Any) -> dict[str, Any]:
        """Reads on until an event is what is wanted."""
        assert self.process.stdout is not None
        deadline = monotonic() + PATIENCE_S
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            if wanted(event):
                return event
            assert monotonic() < deadline, self.events
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


def send(bootstrap: str, values: list[bytes]) -> None:
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for value in values:
            producer.send("orders", value)


def big(last: int) -> list[int]:
    """The orders that the example keeps."""
    return [n for n in range(last) if (n % 7 + 1) * PRICES[list(PRICES)[n % 4]] >= 500]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_pipeline_runs_on_a_broker_of_its_own_until_it_is_told_to_stop(place: Path, runs: list[Run]) -> None:
    """F3, F4, E10: one command; rows and progress in SQLite; one run at a time; status; Ctrl-C ends it well."""
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
    assert refused.returncode == 2 and f"running already: process {run.process.pid}" in refused.stderr
    seen = json.loads(ottla("status", file, "--json").stdout)
    assert (seen["is_running"], seen["pid"], seen["phase"]) == (True, run.process.pid, "running")
    (query,) = seen["queries"]
    assert query["group"] == "big_orders" and query["lag"] == {"orders": 0} and query["ledger_batch"] == 0

    send(seen["bootstrap"], orders(500, 600))
    run.wait_for(lambda event: event["event"] == "batch" and sum(event["positions"]["orders"].values()) == 601)
    run.process.send_signal(signal.SIGINT)
    run.wait_for(lambda event: event["event"] == "stopped")
    assert run.process.wait(60) == 0

    with sqlite3.connect(place / "big_orders.db") as database:
        assert [n for (n,) in database.execute("select id from big_orders order by id")] == big(600)
        ((positions,),) = database.execute("select positions from ottla_ledger").fetchall()
    assert sum(json.loads(positions)["orders"].values()) == 601
    told = ottla("status", "big_orders")
    assert told.returncode == 0 and "stopped" in told.stdout and "nobody" in told.stdout
    assert "exactly-once" in told.stdout and "the embedded broker runs with the pipeline" in told.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_kills_the_driver_and_proves_that_every_order_counts_once() -> None:
    """F2, F4: enrichment and a windowed sum, exactly once through the death of Spark's driver."""
    command = [sys.executable, "-m", "ottla", "demo", "--orders", "6000", "--rate", "3000", "--master", "local[2]"]
    ran = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=590, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["driver_killed"] and told["restarts"] == 1
    enriched, revenue = told["outputs"]
    assert (enriched["found"], enriched["duplicates"], enriched["missing"], enriched["wrong"]) == (6000, 0, 0, 0)
    assert revenue["found"] == revenue["expected"] and not revenue["duplicates"] and not revenue["wrong"]
    assert enriched["found_sum"] == revenue["found_sum"] == enriched["expected_sum"] > 0


def test_mistakes_are_told_before_spark_is_started(place: Path, broker: Any, topic: str) -> None:
    file = str(place / "revenue.yaml")
    started = monotonic()
    wrong = ottla("run", file, "--set", "source.topc=x")
    assert wrong.returncode == 2 and "source.topc: there is no such key (Did you mean topic?)" in wrong.stderr
    missing = ottla(
        "run", file, "-b", broker.bootstrap, "--set", f"source.topic={topic}", "--set", "source.name=orders"
    )
    assert missing.returncode == 2 and f"there is no topic {topic} at {broker.bootstrap}" in missing.stderr
    nobody = ottla("run", file, "-b", "127.0.0.1:1")
    assert nobody.returncode == 1 and "127.0.0.1:1" in nobody.stderr
    remote = ottla("run", str(place / "big_orders.py"), "--master", "spark://host:7077")
    assert remote.returncode == 2 and "SQLite is a file of one machine" in remote.stderr
    unknown = ottla("status", "nothing-of-this-name")
    assert unknown.returncode == 1 and "no pipeline nothing-of-this-name was run here" in unknown.stderr
    assert not any("Traceback" in each.stderr for each in (wrong, missing, nobody, remote, unknown))
    assert monotonic() - started < PATIENCE_S
