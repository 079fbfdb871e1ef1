"""`ottla demo`: runs a pipeline on Spark, kills its driver halfway, and verifies the output."""

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.demo.proof import Proof, print_proofs, prove
from ottla.cli.demo.shop import (
    ENRICHED,
    ORDERS,
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
    from ottla.cli.demo.cluster import DemoCluster

PARTITIONS = 4
KILL_AT = 0.4
"""The driver is killed after this fraction of the orders has been processed."""
BATCHES = 8
"""Minimum number of batches, so that the kill hits a batch in the middle of the run."""
LIMIT_S = 600
JOIN_S = 10
TURN = 200
"""Orders sent between two checks of the clock."""


def demo(
    count: Annotated[int, typer.Option("--orders", "-n", metavar="N", min=1_000, help="Number of orders.")] = 200_000,
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
        typer.Option("--compression", "-z", metavar="CODEC", help="With --broker: none, gzip, snappy, lz4 or zstd"),
    ] = "none",
    as_json: AsJson = False,
) -> None:
    """Run an exactly-once pipeline on Spark, kill its driver, verify the output.

    Produces orders to a topic; the pipeline joins them with prices and sums
    the revenue in windows. Halfway its driver is killed with kill -9. At the
    end every order must be counted exactly once. Takes about 90 seconds. With
    --brokers, a broker that leads partitions is killed, too.

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
        raise OttlaError("--brokers and --bootstrap exclude each other", "the demo only kills brokers of its own")
    if broker:
        from ottla.cli.demo.broker import demo_broker

        demo_broker(records, record_bytes, compression, bootstrap, as_json, brokers)
        return
    _need_spark()
    started = monotonic()
    with (
        _workplace(keep) as place,
        DemoView(as_json, count) as view,
        _broker(bootstrap, brokers, place, view) as (address, cluster),
    ):
        proofs, story = Show(place, address, count, rate, master, view, cluster).play()
    seconds = monotonic() - started
    if as_json:
        print_json({**story, "seconds": round(seconds, 1), "outputs": [proof.document() for proof in proofs]})
    else:
        console().print()
        print_proofs(proofs)
        good = all(proof.is_good for proof in proofs)
        verdict = "✓ every order was processed exactly once" if good else "✗ the output is wrong"
        console().print(f"{verdict} ({seconds:.0f} s)", style="bold green" if good else "bold red")
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
def _workplace(keep: Path | None) -> Iterator[Path]:
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
) -> "Iterator[tuple[str, DemoCluster | None]]":
    """The broker to use: --bootstrap, or an embedded broker for the duration of the demo."""
    if bootstrap is not None:
        check_reachable(bootstrap)
        view.say(f"broker at {bootstrap}")
        yield bootstrap, None
        return
    from ottla.broker.embedded import EmbeddedBroker
    from ottla.cli.pipeline.broker import SETTINGS

    if brokers is not None:
        from ottla.cli.demo.cluster import demo_cluster

        with demo_cluster(brokers, place / "cluster", SETTINGS, view.say) as cluster:
            yield cluster.bootstrap, cluster
        return

    started = monotonic()
    with EmbeddedBroker(place / "broker", settings=SETTINGS) as broker:
        view.say(f"embedded broker started in {(monotonic() - started) * 1000:.0f} ms at {broker.bootstrap}")
        yield broker.bootstrap, None


class Show:
    """The run: produces orders, supervises the pipeline, kills its driver, and verifies the output."""

    def __init__(
        self,
        place: Path,
        bootstrap: str,
        count: int,
        rate: int,
        master: str | None,
        view: DemoView,
        cluster: "DemoCluster | None" = None,
    ) -> None:
        self._cluster = cluster
        self._place = place
        self._bootstrap = bootstrap
        self._count = count
        self._rate = rate
        self._master = master
        self._view = view
        self._produced = 0
        self._production_failed: str | None = None
        self._closed = False
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._is_replaced = False
        self._back_after_s: float | None = None
        self._stop_producing = threading.Event()
        self._started = monotonic()

    def play(self) -> tuple[list[Proof], dict[str, Any]]:
        from ottla.pipeline.loading import load
        from ottla.pipeline.state import StateDirectory
        from ottla.pipeline.supervisor import Supervisor

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
        with state.lock(made.name) as lock:
            producing.start()
            try:
                failure = self._supervisor.run(lock)
            finally:
                self._stop_producing.set()
                producing.join(JOIN_S)
        if failure is not None:
            log = state.driver_log.read_text(errors="replace")[-1500:] if self._place.exists() else ""
            raise CommandError(f"the pipeline failed: {failure.cause}", f"{failure.hint} {log}")
        if self._cluster is not None:
            self._cluster.restart()
        self._view.say("verifying the output topics with a read_committed consumer")
        wanted = expected(self._count)
        proofs = prove(self._bootstrap, wanted)
        story = {
            "orders": self._count,
            "driver_killed": self._killed_at is not None,
            "back_after_s": round(self._back_after_s, 1) if self._back_after_s is not None else None,
            "restarts": self._supervisor.run_state.restarts,
            **(self._cluster.story() if self._cluster is not None else {}),
        }
        return proofs, story

    def _prepare(self) -> Path:
        (self._place / "prices.csv").write_text(prices_text())
        file = self._place / "demo.yaml"
        file.write_text(pipeline_text(per_batch=max(1_000, self._count // BATCHES)))
        with Admin({"bootstrap.servers": self._bootstrap}) as admin:
            there = {topic.name for topic in admin.list_topics()}
            for topic in (ORDERS, ENRICHED, REVENUE):
                if topic in there:
                    raise OttlaError(
                        f"topic {topic} already exists on {self._bootstrap}",
                        "use a broker without the topics of the demo",
                    )
                admin.create_topic(topic, partitions=PARTITIONS)
        self._view.say(f"pipeline: {ORDERS} -> {ENRICHED} (join with prices), {REVENUE} (sums per 10 minutes)")
        self._view.say(f"producing {shown(self._count)} orders at {shown(self._rate)} per second")
        return file

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
                producer.flush()
        except (KafkaError, OttlaError) as error:
            self._production_failed = str(error)
        self._produced = self._count

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
            self._is_replaced = True  # all events of the killed driver have been handled
            self._view.note("restarting the driver")
            self._view.say(f"supervisor: {event['cause']}; restarting in {event['delay_s']:.0f} s")
        elif kind == "batch":
            self._after_batch(event["batch"], state)

    def _after_batch(self, batch: dict[str, Any], state: Any) -> None:
        self._view.batch(batch)
        if self._is_replaced and self._killed_at is not None and self._back_after_s is None:
            self._back_after_s = monotonic() - self._killed_at
            self._view.say(f"recovered: first batch committed {self._back_after_s:.1f} s after the kill", "bold green")
        processed = self._processed("enriched", state)
        if self._killed_at is None and self._kill_at is None and processed >= KILL_AT * self._count:
            # In the middle of the next batch, while its rows are being written.
            self._kill_at = monotonic() + batch["duration_ms"] / 2000

    def _on_tick(self, state: Any) -> None:
        self._view.progress(self._produced, self._processed("enriched", state))
        if self._production_failed is not None:
            raise CommandError(f"cannot produce orders: {self._production_failed}")
        if monotonic() - self._started > LIMIT_S:
            raise CommandError(
                f"the demo did not finish within {LIMIT_S} s", "on a slow or busy machine try --orders 50000"
            )
        if self._cluster is not None:
            processed = self._processed("enriched", state)
            self._cluster.on_progress(processed / self._count, (ORDERS, ENRICHED, REVENUE))
        driver = self._supervisor.driver
        if self._kill_at is not None and self._killed_at is None and monotonic() >= self._kill_at and driver:
            self._killed_at = monotonic()
            self._view.say(f"kill -9 {driver.process.pid}: the Spark driver, in the middle of a batch", "bold red")
            self._view.note("driver killed")
            driver.kill()
            return
        is_done = min(self._processed(name, state) for name in ("enriched", "revenue")) >= self._count
        if not self._closed and self._produced >= self._count and is_done:
            self._close()
        elif self._closed and self._is_over(state) and state.phase == "running":
            self._supervisor.request_stop()

    def _processed(self, query: str, state: Any) -> int:
        """The number of orders in the committed batches of a query."""
        known = state.queries.get(query)
        offsets = known.positions.get(ORDERS, {}) if known is not None else {}
        return int(sum(offsets.values()))

    def _is_over(self, state: Any) -> bool:
        """Whether the last window has been written and both queries have processed the closing order."""
        watermark = state.queries["revenue"].watermark
        if watermark is None or self._processed("enriched", state) <= self._count:
            return False
        return datetime.fromisoformat(watermark.replace("Z", "+00:00")) >= last_window_end(self._count)
