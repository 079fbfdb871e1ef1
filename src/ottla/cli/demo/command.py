"""`ottla demo`: runs a pipeline on Spark, kills a worker, the broker and the driver, and verifies the output."""

import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.demo.kills import BROKER_DOWN_S, Hold, Kill, Kills, Watch, kill_workers
from ottla.cli.demo.proof import Proof, print_proofs, prove
from ottla.cli.demo.shop import (
    ENRICHED,
    ORDERS,
    PLAIN,
    REVENUE,
    closing_order,
    expected,
    last_window_end,
    orders,
    pipeline_text,
    prices_text,
)
from ottla.cli.demo.view import DemoView
from ottla.cli.output import CommandError, console, print_json
from ottla.cli.output import count as shown
from ottla.cli.session import AsJson, check_reachable
from ottla.client.blocking import Admin, Producer
from ottla.clock import monotonic
from ottla.errors import KafkaError, OttlaError

if TYPE_CHECKING:
    from ottla.broker.embedded.broker import EmbeddedBroker
    from ottla.cli.demo.cluster import DemoCluster

PARTITIONS = 4
BATCHES = 6
"""Minimum number of batches: one before the kills, one for each kill, and more afterwards."""
MASTER = f"local[{max(2, os.cpu_count() or 1)},4]"
"""This machine; a failed task is retried, as on a cluster. At a kill, two tasks are held."""
TOPICS = (ORDERS, ENRICHED, REVENUE, PLAIN)
QUERIES = ("enriched", "revenue", "at-least-once")
LIMIT_S = 600
JOIN_S = 10
TURN, TURN_S = 100, 0.05
"""Orders sent between two checks of the clock, and how often it is checked whether more may be sent."""
AHEAD = 3
"""How many batches the producer stays ahead of the pipeline before the last kill."""
HELD_BACK_FROM = 0.8
"""From this fraction of the orders on, the producer sends only parts of a batch until the last kill."""


def demo(
    count: Annotated[int, typer.Option("--orders", "-n", metavar="N", min=1_000, help="Number of orders.")] = 60_000,
    rate: Annotated[int, typer.Option("--rate", metavar="N", min=100, help="Orders per second.")] = 10_000,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark master. Default: this machine.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIRECTORY", help="Keep all files in this directory.")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Use this broker. Default: an embedded one."),
    ] = None,
    broker: Annotated[
        bool,
        typer.Option(
            "--broker", metavar="", help="Measure only the broker (produce, consume, verify). Needs no Spark."
        ),
    ] = False,
    records: Annotated[
        int, typer.Option("--records", metavar="N", min=1, help="With --broker: number of records.")
    ] = 300_000,
    brokers: Annotated[
        int | None,
        typer.Option("--brokers", metavar="N", min=3, help="Use a cluster of N brokers, and kill one of them, too."),
    ] = None,
    record_bytes: Annotated[
        int, typer.Option("--size", metavar="N", min=8, max=1_000_000, help="With --broker: bytes per record.")
    ] = 100,
    compression: Annotated[
        str,
        typer.Option("--compression", "-z", metavar="CODEC", help="With --broker: none, gzip, snappy, lz4 or zstd."),
    ] = "none",
    as_json: AsJson = False,
) -> None:
    """Run an exactly-once pipeline on Spark, kill everything, verify the output.

    Produces orders to a topic; the pipeline joins them with prices and sums
    the revenue in windows. Spark's Python workers, the broker and Spark's
    driver are killed with kill -9, each when rows of a batch are written but
    not yet committed; failpoints hold the tasks there. At the end every order
    must be counted exactly once. For comparison it also shows the rows that
    the kills left behind, which no read_committed consumer ever sees, and an
    at-least-once output with its duplicates. Takes about a minute and a half
    on two idle cores. With --brokers, the broker that leads most partitions is
    killed instead of the only one.

    \b
    Examples:
      ottla demo
      ottla demo --orders 1000000 --rate 50000
      ottla demo --keep /tmp/shop             # keep the files and inspect them
      ottla demo --broker --size 1000 --compression lz4
      ottla demo --brokers 3                  # kills one of three brokers, too
      ottla demo --broker --brokers 3         # without Spark
    """
    if brokers is not None and bootstrap is not None:
        raise OttlaError("--brokers cannot be combined with --bootstrap", "the demo only kills brokers that it started")
    if broker:
        from ottla.cli.demo.broker import demo_broker

        demo_broker(records, record_bytes, compression, bootstrap, as_json, brokers)
        return
    _need_spark()
    started = monotonic()
    with (
        _work_directory(keep) as place,
        DemoView(as_json, count) as view,
        _broker(bootstrap, brokers, place, view) as (address, owned, cluster),
    ):
        proofs, summary = PipelineDemo(place, address, count, rate, master, view, owned, cluster).run()
    seconds = monotonic() - started
    if as_json:
        print_json({**summary, "seconds": round(seconds, 1), "outputs": [proof.document() for proof in proofs]})
    else:
        console().print()
        print_proofs(proofs)
        good = all(proof.is_good for proof in proofs)
        verdict = "✓ every order was processed exactly once" if good else "✗ the output is wrong"
        console().print(f"{verdict} ({seconds:.0f} s)", style="bold green" if good else "bold red")
        repeated = sum(proof.duplicates for proof in proofs if proof.may_repeat)
        if repeated:
            console().print(
                f"  for comparison: the at-least-once output has {shown(repeated)} orders twice", style="yellow"
            )
        if keep is not None:
            console().print(f"files are in {keep}; see also: ottla pipeline status {keep}/demo.yaml", style="dim")
    if not all(proof.is_good for proof in proofs):
        raise CommandError("orders were lost, duplicated or miscounted", "this is a bug, please report it")


def _need_spark() -> None:
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise OttlaError(
            "the demo needs PySpark", "pip install 'ottla[spark]', or run the demo of the broker: ottla demo --broker"
        )


@contextlib.contextmanager
def _work_directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            raise OttlaError(f"{keep} is not empty", "choose an empty or new directory")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="ottla-demo-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextlib.contextmanager
def _broker(
    bootstrap: str | None, brokers: int | None, place: Path, view: DemoView
) -> "Iterator[tuple[str, EmbeddedBroker | None, DemoCluster | None]]":
    """The broker to use: --bootstrap, or an embedded broker for the duration of the demo."""
    if bootstrap is not None:
        check_reachable(bootstrap)
        view.say(f"broker at {bootstrap}")
        yield bootstrap, None, None
        return
    from ottla.broker.embedded.broker import EmbeddedBroker
    from ottla.cli.pipeline.broker import SETTINGS

    if brokers is not None:
        from ottla.cli.demo.cluster import demo_cluster

        with demo_cluster(brokers, place / "cluster", SETTINGS, view.say) as cluster:
            yield cluster.bootstrap, None, cluster
        return

    started = monotonic()
    with EmbeddedBroker(place / "broker", settings=SETTINGS) as broker:
        view.say(f"embedded broker started in {(monotonic() - started) * 1000:.0f} ms at {broker.bootstrap}")
        yield broker.bootstrap, broker, None


class PipelineDemo:
    """The run: produces orders, supervises the pipeline, kills its parts, and verifies the output."""

    def __init__(
        self,
        place: Path,
        bootstrap: str,
        count: int,
        rate: int,
        master: str | None,
        view: DemoView,
        broker: "EmbeddedBroker | None" = None,
        cluster: "DemoCluster | None" = None,
    ) -> None:
        self._broker = broker
        self._cluster = cluster
        self._place = place
        self._bootstrap = bootstrap
        self._count = count
        self._per_batch = max(100, count // BATCHES)
        self._rate = rate
        self._master = master or MASTER
        self._view = view
        self._produced = self._done = 0
        self._production_failed: str | None = None
        self._closed = False
        self._driver_kill = Kill("driver", self._kill_driver)
        self._is_replaced = False
        self._broker_since: float | None = None
        self._stop_producing = threading.Event()
        self._started = monotonic()

    def run(self) -> tuple[list[Proof], dict[str, Any]]:
        from ottla.pipeline.definition.loading import load
        from ottla.pipeline.running.state import StateDirectory
        from ottla.pipeline.running.supervisor import Supervisor

        # The clients of the demo would report on standard error that they cannot reach the broker that it has killed.
        logging.getLogger("ottla").addHandler(logging.NullHandler())
        file = self._prepare()
        made = load(file)
        state = StateDirectory(made)
        self._supervisor = Supervisor(
            made,
            state,
            bootstrap=self._bootstrap,
            job={"file": str(file.absolute()), "changes": {}, "master": self._master},
            on_event=self._on_event,
            on_tick=self._on_tick,
        )
        producing = threading.Thread(target=self._produce, name="orders", daemon=True)
        watch = Watch(self._bootstrap, PARTITIONS, self._place / "checkpoint")
        with (
            state.lock(made.name) as lock,
            contextlib.closing(watch),
            tempfile.TemporaryDirectory(prefix="ottla-demo-") as directory,
        ):
            hold = Hold(Path(directory))
            self._kills = Kills(self._planned(), hold, watch, self._view.say)
            producing.start()
            try:
                with hold.installed():
                    failure = self._supervisor.run(lock)
            finally:
                self._stop_producing.set()
                producing.join(JOIN_S)
        if failure is not None:
            log = state.driver_log.read_text(errors="replace")[-1500:] if self._place.exists() else ""
            raise CommandError(f"the pipeline failed: {failure.cause}", f"{failure.hint} {log}")
        if self._cluster is not None:
            self._cluster.restart()
        self._view.note("verifying")
        self._view.say("verifying the output topics with read_committed consumers")
        wanted = expected(self._count)
        proofs = prove(self._bootstrap, wanted)
        summary = {
            "orders": self._count,
            "kills": [kill.document() for kill in self._kills.kills if kill.killed_at is not None],
            "restarts": self._supervisor.run_state.restarts,
            **(self._cluster.document() if self._cluster is not None else {}),
        }
        return proofs, summary

    def _prepare(self) -> Path:
        (self._place / "prices.csv").write_text(prices_text())
        file = self._place / "demo.yaml"
        file.write_text(pipeline_text(self._per_batch))
        with Admin({"bootstrap.servers": self._bootstrap}) as admin:
            there = {topic.name for topic in admin.list_topics()}
            for topic in TOPICS:
                if topic in there:
                    raise OttlaError(
                        f"topic {topic} already exists on {self._bootstrap}",
                        "use a broker without the topics of the demo",
                    )
                admin.create_topic(topic, partitions=PARTITIONS)
        self._view.say(f"pipeline: {ORDERS} -> {ENRICHED} (join with prices), {REVENUE} (sums per 10 minutes)")
        self._view.say(f"for comparison, without transactions: {ORDERS} -> {PLAIN}")
        self._view.say(f"producing {shown(self._count)} orders at {shown(self._rate)} per second")
        return file

    # Killing

    def _planned(self) -> list[Kill]:
        kills = [Kill("worker", kill_workers)]
        if self._broker is not None:
            kills.append(Kill("broker", self._kill_broker, self._start_broker))
        if self._cluster is not None:
            kills.append(Kill("broker", self._kill_leader, self._await_leaders))
        return [*kills, self._driver_kill]

    def _kill_broker(self, held: Sequence[int]) -> str | None:
        assert self._broker is not None
        pid = self._broker.pid
        self._broker.kill()
        self._broker_since = monotonic()
        self._view.note("broker killed")
        return f"{pid}: the broker"

    def _start_broker(self) -> str | None:
        if self._broker_since is None or monotonic() - self._broker_since < BROKER_DOWN_S:
            return None
        assert self._broker is not None
        self._broker_since, started = None, monotonic()
        self._broker.start()
        return f"restarted the broker on its data in {(monotonic() - started) * 1000:.0f} ms"

    def _kill_leader(self, held: Sequence[int]) -> str | None:
        assert self._cluster is not None
        return self._cluster.kill(TOPICS)

    def _await_leaders(self) -> str | None:
        assert self._cluster is not None
        self._cluster.await_leaders(TOPICS)
        return None

    def _kill_driver(self, held: Sequence[int]) -> str | None:
        driver = self._supervisor.driver
        if driver is None:
            return None
        driver.kill()
        kill_workers(held)  # they would exit after the driver, but not immediately
        self._view.note("driver killed")
        return f"{driver.process.pid}: the Spark driver"

    # Producing

    def _produce(self) -> None:
        started = monotonic()
        try:
            with Producer({"bootstrap.servers": self._bootstrap, "linger.ms": "5"}) as producer:
                for number, order in enumerate(orders(self._count), 1):
                    producer.send(ORDERS, order)
                    if not number % TURN:
                        self._produced = number
                        ahead_s = number / self._rate - (monotonic() - started)
                        if self._stop_producing.wait(max(0.0, ahead_s)):
                            return
                        while number > self._produce_until():
                            if self._stop_producing.wait(TURN_S):
                                return
                producer.flush()
        except (KafkaError, OttlaError) as error:
            self._production_failed = str(error)
        self._produced = self._count

    def _produce_until(self) -> int:
        """How many orders to produce for now: each kill needs a batch in progress, and another to show the recovery."""
        if self._kills.are_over:
            return self._count
        if self._done < self._count * HELD_BACK_FROM:
            return self._done + AHEAD * self._per_batch
        return self._done + self._per_batch // 4

    def _close(self) -> None:
        """Sends the closing order. Only after all others are processed: it would make pending orders late."""
        self._closed = True
        with Producer({"bootstrap.servers": self._bootstrap}) as producer:
            producer.send(ORDERS, closing_order(self._count)).result()
        self._view.say("all orders processed; sending a last event that closes the open windows")

    # Events of the supervisor

    def _on_event(self, event: dict[str, Any], state: Any) -> None:
        kind = event["event"]
        if kind == "spark":
            self._view.note("recovering" if self._is_replaced else "first batch")
            self._view.say(f"Spark {event['version']} started on {event['master']} (driver: process {event['pid']})")
        elif kind == "restarting":
            # All events of the killed driver have been handled.
            self._is_replaced = self._driver_kill.killed_at is not None
            self._view.note("restarting the driver")
            self._view.say(f"supervisor: {event['cause']}; restarting in {event['delay_s']:.0f} s")
        elif kind == "batch":
            self._after_batch(event["batch"])

    def _after_batch(self, batch: dict[str, Any]) -> None:
        self._view.batch(batch)
        if batch["query"] == "enriched":
            self._kills.on_batch(batch["batch_id"])

    def _on_tick(self, state: Any) -> None:
        self._view.progress(self._produced, self._processed("enriched", state))
        if self._production_failed is not None:
            raise CommandError(f"cannot produce orders: {self._production_failed}")
        if monotonic() - self._started > LIMIT_S:
            raise CommandError(
                f"the demo did not finish within {LIMIT_S} s", "on a slow or busy machine try --orders 50000"
            )
        if self._cluster is not None and any(kill.name == "broker" and kill.is_over for kill in self._kills.kills):
            self._cluster.restart()
        # If one of the two is held, the other one needs orders until it is held, too.
        self._done = max(self._processed("enriched", state), self._processed("at-least-once", state))
        self._kills.on_tick()
        is_done = self._produced >= self._count <= min(self._processed(name, state) for name in QUERIES)
        if is_done:
            self._kills.give_up()
        if not self._closed and is_done:
            self._close()
        elif self._closed and self._is_over(state) and state.phase == "running":
            self._supervisor.request_stop()

    def _processed(self, query: str, state: Any) -> int:
        """The number of orders in the committed batches of a query."""
        known = state.queries.get(query)
        offsets = known.positions.get(ORDERS, {}) if known is not None else {}
        return int(sum(offsets.values()))

    def _is_over(self, state: Any) -> bool:
        """Whether the last window has been written and all queries have processed the closing order."""
        watermark = state.queries["revenue"].watermark
        if watermark is None or min(self._processed(name, state) for name in QUERIES) <= self._count:
            return False
        return datetime.fromisoformat(watermark.replace("Z", "+00:00")) >= last_window_end(self._count)
