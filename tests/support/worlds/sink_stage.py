"""The exactly-once sink without Spark: its tasks and its driver, called as Spark would call them.

>>> stage = SinkStage(broker.bootstrap, "orders")
>>> run = stage.start()                                # a run of the query, as after a start of the driver
>>> run.commit(0, run.write(0, 0, ["a", "b"]), run.write(0, 1, ["c"]))
>>> stage.read()
['a', 'b', 'c']
"""

import itertools
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from ottla.client.blocking import Admin, Consumer
from ottla.client.core.model import LATEST
from ottla.clock import monotonic
from ottla.spark.sink import driver as sink_driver
from ottla.spark.sink import tasks as sink_tasks
from ottla.spark.sink.clients import clients, run
from ottla.spark.sink.decisions import SinkState
from ottla.spark.sink.driver import Batch
from ottla.spark.sink.ledger import Ledger, Names
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.sink import SinkMessage, batch_of
from ottla.spark.sink.tasks import Place, Rows, Written, write_at_most_once, write_exactly_once
from ottla.types import TopicPartition

PARTITIONS = 2
_numbers = itertools.count(1)


def end_drivers() -> None:
    """The driver's process ends: it sends nothing more, and its transactions stay as they are."""
    for driver in sink_driver.drivers.values():
        run(driver.close())
    sink_driver.drivers.clear()


class SinkStage:
    """One query that writes to its own topic, and a reader of that topic."""

    def __init__(self, bootstrap: str, topic: str, **options: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.query = str(uuid.uuid4())
        self.sink = options.pop("sinkName", f"sink-{topic}")
        self.names = Names(self.sink)
        written = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **options}
        self.options = SinkOptions.parse(written, True)
        self.partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(topic, partitions=PARTITIONS)

    def start(self, query: str | None = None) -> "SinkRun":
        """Starts the query (again): every process is new."""
        end_drivers()
        return SinkRun(self, query or self.query, f"run-{next(_numbers)}")

    def read(self, isolation_level: str = "read_committed") -> list[str]:
        """Every value that a reader sees now, sorted."""
        self._await_markers()
        with Consumer(bootstrap_servers=self.bootstrap, isolation_level=isolation_level) as consumer:
            consumer.assign(self.partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(self.partitions)
            found = []
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                found += [(record.value or b"").decode() for record in consumer.poll(1000)]
        return sorted(found)

    def _await_markers(self) -> None:
        """A coordinator answers EndTxn when it has decided; its markers reach the partitions a moment later."""
        deadline = monotonic() + 600
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            while ending := [
                listing.transactional_id
                for listing in admin.list_transactions(states=["PrepareCommit", "PrepareAbort"])
                if self.names.task_of(listing.transactional_id) is not None
            ]:
                assert monotonic() < deadline, f"still ending: {ending}"

    def is_held_back(self) -> bool:
        """Whether an open transaction blocks readers before the end of a partition."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            wanted = dict.fromkeys(self.partitions, LATEST)
            return admin.list_offsets(wanted) != admin.list_offsets(wanted, isolation_level="read_committed")

    def state(self) -> SinkState:
        return run(clients(self.options).read_state(self.names))

    def ledger(self, tasks: Iterable[int] = range(4)) -> Ledger:
        return run(clients(self.options).read_ledger(self.names, tasks))


class SinkRun:
    """One run of the query: its tasks and its driver."""

    def __init__(self, stage: SinkStage, query: str, name: str, call: str = "") -> None:
        self.stage, self.query, self.name, self.call = stage, query, name, call

    def for_each_batch(self) -> "SinkRun":
        """One write of this run inside foreachBatch. Each may commit in another process."""
        end_drivers()
        return SinkRun(self.stage, self.query, self.name, f"call-{next(_numbers)}")

    def write(self, batch: int, task: int, values: Sequence[str]) -> Written:
        """A task writes its rows of a batch."""
        sink_tasks.first_batches.pop((self.stage.sink, self.name), None)  # a new worker
        return write_exactly_once(self.stage.options, self.place(batch, task), self._rows(values))

    def write_at_most_once(self, batch: int, task: int, values: Sequence[str]) -> Written:
        return write_at_most_once(self.stage.options, self.place(batch, task), self._rows(values))

    def commit(self, batch: int, *written: Written) -> None:
        run(sink_driver.driver(self.stage.options, self.stage.sink).commit(self._batch(batch, written)))

    def abort(self, batch: int, *written: Written) -> None:
        run(sink_driver.driver(self.stage.options, self.stage.sink).abort(self._batch(batch, written)))

    def decide(self, batch: int, *written: Written) -> Any:
        """The driver writes its decision and commits nothing."""
        driver = sink_driver.driver(self.stage.options, self.stage.sink)
        plan = run(driver.decide(self._batch(batch, written)))
        end_drivers()
        return plan

    def place(self, batch: int, task: int) -> Place:
        return Place(self.stage.sink, self.query, self.name, batch, task, call=self.call)

    def _rows(self, values: Sequence[str]) -> Rows:
        import pyarrow as pa

        batch = pa.record_batch({"value": pa.array(values, pa.string())})
        return Rows([batch], ["value"], self.stage.options)

    def _batch(self, batch: int, written: Iterable[Written]) -> Batch:
        reports = [SinkMessage(self.place(batch, task), each) for task, each in enumerate(written)]
        return batch_of(reports, batch)
