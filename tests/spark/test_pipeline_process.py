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

from tests.support.waiting import eventually, until

from ottla import Admin, Broker, Consumer, Producer
from ottla.clock import monotonic
from ottla.pipeline.loading import load
from ottla.pipeline.state import StateDirectory

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
PATIENCE_S = 200
PRICES = {"apple": 50, "pear": 80, "plum": 20, "fig": 125}


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is run here is remembered here, and not in the home of whoever runs the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of the examples, so that nothing is left in the checkout."""
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


def send(bootstrap: str, values: list[bytes], topic: str = "orders") -> None:
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for value in values:
            producer.send(topic, value)


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
    looks: list[dict[str, Any]] = []

    def is_told() -> bool:
        """A run writes down how it is with its next heartbeat, and a broker that is slow to answer tells no lag."""
        looks.append(json.loads(ottla("status", file, "--json").stdout))
        return looks[-1]["phase"] == "running" and looks[-1]["queries"][0]["lag"] == {"orders": 0}

    assert until(is_told), looks[-1]
    seen = looks[-1]
    assert (seen["is_running"], seen["pid"]) == (True, run.process.pid)
    (query,) = seen["queries"]
    assert query["group"] == "big_orders" and query["ledger_batch"] == 0

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


OUTAGE = """
name: copy
source:
  topic: orders
  schema: id bigint
  options: {kafkaConsumer.pollTimeoutMs: 3000, kafka.default.api.timeout.ms: 4000}
sql: select cast(id as string) as value from orders
sink: {topic: copies}
checkpoint: checkpoint
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pipeline_is_there_again_when_its_brokers_are(tmp_path: Path, runs: list[Run]) -> None:
    """F4: they stay away longer than the source waits; the driver ends, is started again, and nothing comes twice."""
    file, data = tmp_path / "copy.yaml", tmp_path / "broker"
    file.write_text(OUTAGE)
    with Broker.embedded(data) as broker:
        address = broker.bootstrap
        with Admin({"bootstrap.servers": address}) as admin:
            admin.create_topic("orders", partitions=1)
            admin.create_topic("copies", partitions=1)
        send(address, orders(0, 50))
        run = Run(str(file), "--master", "local[2]", "-b", address)
        runs.append(run)
        run.wait_for(lambda event: event["event"] == "batch" and event["positions"] == {"orders": {"0": 50}})
    restart = run.wait_for(lambda event: event["event"] == "restarting")
    assert restart["cause"].startswith("no broker answered"), restart
    with Broker.embedded(data, listen=address):
        send(address, orders(50, 80))
        run.wait_for(lambda event: event["event"] == "batch" and event["positions"] == {"orders": {"0": 80}})
        run.process.send_signal(signal.SIGINT)
        run.wait_for(lambda event: event["event"] == "stopped")
        assert run.process.wait(60) == 0
        with Consumer({"bootstrap.servers": address, "isolation.level": "read_committed"}) as consumer:
            consumer.assign([("copies", 0)])
            consumer.seek_to_beginning()
            (end,) = consumer.end_offsets(consumer.assignment()).values()
            copies: list[int] = []

            def is_at_the_end() -> bool:
                copies.extend(int(record.value or b"") for record in consumer.poll(200))
                return consumer.position(("copies", 0)) >= end

            eventually(is_at_the_end)
    assert copies == list(range(80))


SLOW = """
from pathlib import Path

from ottla.pipeline import database, pipeline, topic

HERE = Path(__file__).parent


@pipeline(source=topic("TOPIC", name="orders", schema="id bigint"), sink=database("sqlite:///done.db", "done"),
          checkpoint="checkpoint")
def slow(orders):
    from pyspark.sql import functions as f
    here = str(HERE)

    def take(id):
        import time
        from pathlib import Path

        word = Path(here, "word")
        Path(here, "began").touch()
        for _ in range(6000):
            if word.exists():
                break
            time.sleep(0.05)
        if word.read_text() == "fail":
            raise ValueError("no such order")
        return id

    return orders.select(f.udf(take, "bigint")("id").alias("id"))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stop_in_the_middle_of_a_batch_finishes_it_or_says_that_it_could_not(
    tmp_path: Path, broker: Any, topic: str, runs: list[Run]
) -> None:
    file, began, word = tmp_path / "slow.py", tmp_path / "began", tmp_path / "word"
    file.write_text(SLOW.replace("TOPIC", topic))
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topic(topic, partitions=1)
    send(broker.bootstrap, orders(0, 10), topic)

    def stop_in_the_middle(then: str) -> Run:
        began.unlink(missing_ok=True)
        word.unlink(missing_ok=True)
        run = Run(str(file), "--master", "local[1]", "-b", broker.bootstrap)
        runs.append(run)
        run.wait_for(lambda event: event["event"] == "started")
        assert until(lambda: began.exists() or run.process.poll() is not None, PATIENCE_S) and began.exists()
        run.process.send_signal(signal.SIGINT)
        run.wait_for(lambda event: event["event"] == "stopping")
        draft = word.with_suffix(".draft")
        draft.write_text(then)
        draft.rename(word)
        return run

    failed = stop_in_the_middle("fail")
    event = failed.wait_for(lambda event: event["event"] == "failed")
    assert "no such order" in event["cause"]
    _, told = failed.process.communicate(timeout=PATIENCE_S)
    assert failed.process.returncode == 1 and b"no such order" in told and b"Traceback" not in told

    done = stop_in_the_middle("go on")
    batch = done.wait_for(lambda event: event["event"] == "batch")
    assert (batch["batch_id"], batch["rows_in"], batch["rows_out"]) == (0, 10, 10)
    done.wait_for(lambda event: event["event"] == "stopped")
    assert done.process.wait(60) == 0
    assert (tmp_path / "checkpoint" / "slow" / "commits" / "0").exists()
    with sqlite3.connect(tmp_path / "done.db") as database:
        assert [n for (n,) in database.execute("select id from done order by id")] == list(range(10))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_kills_the_driver_and_proves_that_every_order_counts_once() -> None:
    """F2, F4: enrichment and a windowed sum, exactly once through the death of Spark's driver."""
    command = [sys.executable, "-m", "ottla", "demo", "--orders", "6000", "--rate", "3000", "--master", "local[2]"]
    ran = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=590, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["driver_killed"] and told["restarts"] >= 1
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
