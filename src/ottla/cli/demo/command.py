"""`ottla demo`: a shop's orders through a pipeline on Spark whose driver is killed in the middle, and the proof."""

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

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
from ottla.cli.session import AsJson, check_reachable
from ottla.client.blocking import Admin, Producer
from ottla.clock import monotonic
from ottla.errors import KafkaError, OttlaError

PARTITIONS = 4
KILL_AT = 0.4
"""The driver is killed once this part of the orders is through."""
BATCHES = 8
"""Into how many batches the orders are cut at least, so that there is a middle to kill in."""
LIMIT_S = 600
JOIN_S = 10
TURN = 200
"""Orders that are sent between two looks at the clock."""


def demo(
    count: Annotated[int, typer.Option("--orders", "-n", metavar="N", min=1_000, help="How many orders.")] = 200_000,
    rate: Annotated[int, typer.Option("--rate", metavar="N", min=100, help="Orders a second.")] = 10_000,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="The Spark cluster; without it, this machine.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIRECTORY", help="Work here, and leave everything.")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Use this broker instead of starting one."),
    ] = None,
    broker: Annotated[
        bool, typer.Option("--broker", metavar="", help="Only the broker: produce, consume, count. Needs no Spark.")
    ] = False,
    records: Annotated[
        int, typer.Option("--records", metavar="N", min=1, help="With --broker: how many records.")
    ] = 300_000,
    record_bytes: Annotated[
        int, typer.Option("--size", metavar="N", min=8, max=1_000_000, help="With --broker: bytes in each record.")
    ] = 100,
    compression: Annotated[
        str,
        typer.Option("--compression", "-z", metavar="CODEC", help="With --broker: none, gzip, snappy, …"),
    ] = "none",
    as_json: AsJson = False,
) -> None:
    """A shop's orders go through a pipeline on Spark. Its driver is killed in the middle. Nothing is lost or doubled.

    \b
    Examples:
      ottla demo
      ottla demo --orders 1000000 --rate 50000
      ottla demo --keep /tmp/shop             # and look at what it leaves there
      ottla demo --broker --size 1000 --compression lz4
    """
    if broker:
        from ottla.cli.demo.broker import demo_broker

        demo_broker(records, record_bytes, compression, bootstrap, as_json)
        return
    _need_spark()
    started = monotonic()
    with _workplace(keep) as place, DemoView(as_json, count) as view, _broker(bootstrap, place, view) as address:
        proofs, story = Show(place, address, count, rate, master, view).play()
    seconds = monotonic() - started
    if as_json:
        print_json({**story, "seconds": round(seconds, 1), "outputs": [proof.document() for proof in proofs]})
    else:
        console().print()
        print_proofs(proofs)
        good = all(proof.is_good for proof in proofs)
        verdict = "every order counted exactly once" if good else "the outputs are wrong"
        console().print(f"{verdict}, in {seconds:.0f} s", style="bold green" if good else "bold red")
        if keep is not None:
            console().print(f"everything is in {keep}; ottla pipeline status {keep}/demo.yaml", style="dim")
    if not all(proof.is_good for proof in proofs):
        raise CommandError("orders were lost, doubled or miscounted", "this should not happen: please report it")


def _need_spark() -> None:
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise OttlaError(
            "the demo needs PySpark", "pip install 'ottla[spark]', or see the broker alone: ottla demo --broker"
        )


@contextlib.contextmanager
def _workplace(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            raise OttlaError(f"{keep} is not empty", "name a directory of its own")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="ottla-demo-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextlib.contextmanager
def _broker(bootstrap: str | None, place: Path, view: DemoView) -> Iterator[str]:
    """The broker to use: the one named, or one of our own for the length of the demo."""
    if bootstrap is not None:
        check_reachable(bootstrap)
        view.say(f"broker at {bootstrap}")
        yield bootstrap
        return
    from ottla.broker.embedded import EmbeddedBroker
    from ottla.cli.pipeline.broker import SETTINGS

    started = monotonic()
    with EmbeddedBroker(place / "broker", settings=SETTINGS) as broker:
        view.say(f"embedded broker at {broker.bootstrap}, ready after {(monotonic() - started) * 1000:.0f} ms")
        yield broker.bootstrap


class Show:
    """The demo itself."""

    def __init__(self, place: Path, bootstrap: str, count: int, rate: int, master: str | None, view: DemoView) -> None:
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
        self._is_over_for_all = threading.Event()
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
                self._is_over_for_all.set()
                producing.join(JOIN_S)
        if failure is not None:
            log = state.driver_log.read_text(errors="replace")[-1500:] if self._place.exists() else ""
            raise CommandError(f"the pipeline failed: {failure.cause}", f"{failure.cure} {log}")
        self._view.say("reading the outputs as any reader of committed records would")
        wanted = expected(self._count)
        proofs = prove(self._bootstrap, wanted)
        story = {
            "orders": self._count,
            "driver_killed": self._killed_at is not None,
            "back_after_s": round(self._back_after_s, 1) if self._back_after_s is not None else None,
            "restarts": self._supervisor.run_state.restarts,
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
                        f"topic {topic} is there already at {self._bootstrap}", "the demo needs a broker without it"
                    )
                admin.create_topic(topic, partitions=PARTITIONS)
        self._view.say("pipeline: orders are priced into one topic, and summed by fruit and ten minutes into another")
        return file

    # --- orders -------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        started = monotonic()
        try:
            with Producer({"bootstrap.servers": self._bootstrap, "linger.ms": "5"}) as producer:
                for number, order in enumerate(orders(self._count), 1):
                    producer.send(ORDERS, order)
                    if not number % TURN:
                        self._produced = number
                        ahead_s = number / self._rate - (monotonic() - started)
                        if self._is_over_for_all.wait(max(0.0, ahead_s)):
                            return
                producer.flush()
        except (KafkaError, OttlaError) as error:
            self._production_failed = str(error)
        self._produced = self._count

    def _close(self) -> None:
        """Sent when every order is through: were it read before one of them, that one would be late."""
        self._closed = True
        with Producer({"bootstrap.servers": self._bootstrap}) as producer:
            producer.send(ORDERS, closing_order(self._count)).result()
        self._view.say("every order is through; the shop closes, and with it the last windows")

    # --- the run ------------------------------------------------------------------------------------------

    def _on_event(self, event: dict[str, Any], state: Any) -> None:
        kind = event["event"]
        if kind == "spark":
            self._view.say(f"Spark {event['version']} is up on {event['master']} (driver: process {event['pid']})")
        elif kind == "restarting":
            self._is_replaced = True  # what the old one had still said is read
            self._view.say(f"the supervisor saw it: {event['cause']}; it starts another in {event['delay_s']:.0f} s")
        elif kind == "batch":
            self._after_batch(event["batch"], state)

    def _after_batch(self, batch: dict[str, Any], state: Any) -> None:
        self._view.batch(batch)
        if self._is_replaced and self._killed_at is not None and self._back_after_s is None:
            self._back_after_s = monotonic() - self._killed_at
            self._view.say(f"back: the new driver finished its first batch {self._back_after_s:.1f} s after the kill")
        through = self._through("enriched", state)
        if self._killed_at is None and self._kill_at is None and through >= KILL_AT * self._count:
            # In the middle of the next batch, when its rows are on their way.
            self._kill_at = monotonic() + batch["duration_ms"] / 2000

    def _on_tick(self, state: Any) -> None:
        self._view.progress(self._produced, self._through("enriched", state), state.queries.get("revenue"))
        if self._production_failed is not None:
            raise CommandError(f"orders could not be sent: {self._production_failed}")
        if monotonic() - self._started > LIMIT_S:
            raise CommandError(f"the demo did not end within {LIMIT_S} s", "is the machine busy? try --orders 50000")
        driver = self._supervisor.driver
        if self._kill_at is not None and self._killed_at is None and monotonic() >= self._kill_at and driver:
            self._killed_at = monotonic()
            self._view.alarm(f"kill -9 of the Spark driver (process {driver.process.pid}), in the middle of a batch")
            driver.kill()
            return
        is_through = min(self._through(name, state) for name in ("enriched", "revenue")) >= self._count
        if not self._closed and self._produced >= self._count and is_through:
            self._close()
        elif self._closed and self._is_over(state) and state.phase == "running":
            self._supervisor.request_stop()

    def _through(self, query: str, state: Any) -> int:
        """How many orders a query has in committed batches."""
        known = state.queries.get(query)
        offsets = known.positions.get(ORDERS, {}) if known is not None else {}
        return int(sum(offsets.values()))

    def _is_over(self, state: Any) -> bool:
        """Whether the last window has come out, and the closing order has gone through both queries."""
        watermark = state.queries["revenue"].watermark
        if watermark is None or self._through("enriched", state) <= self._count:
            return False
        return datetime.fromisoformat(watermark.replace("Z", "+00:00")) >= last_window_end(self._count)
