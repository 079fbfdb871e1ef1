"""Workload copier: a group that consumes, transforms and produces exactly once, in transactions."""

from ottla.verify.clients.port import ClientError, ConsumerPort, Place, ProducerPort, Received, Remedy
from ottla.verify.history import COMMITTED, COPY, FAIL, OK, Operation, partition_name
from ottla.verify.workers.list_append import POLL_S
from ottla.verify.workers.recorder import number_of, reads
from ottla.verify.workers.transactions import end_aborted, finish, send_recorded
from ottla.verify.workers.worker import Setup, Worker

ABORT_SHARE = 0.1
COPIED_AT_ONCE = 40
STALL_SHARE = 0.01
"""The fraction of copies during which the copier hangs until its group has reassigned its partitions."""
STALL_S = 8.0


class Copier(Worker):
    """Copies each record to the same partition of another topic, and commits its offset in the same transaction."""

    def __init__(self, setup: Setup, source: str, target: str, *, transactional_id: str, group: str) -> None:
        super().__init__(setup)
        self.source, self.target = source, target
        self.transactional_id, self.group = transactional_id, group

    def live(self) -> None:
        consumer = self.library.consumer(self.client, COMMITTED, self.group)
        producer = self.library.producer(self.client, self.transactional_id)
        try:
            producer.init()
            consumer.subscribe(self.source, self._on_assignment)
            is_alive = self.lifetime(10, 40)
            while is_alive():
                records = consumer.poll(POLL_S, self.random.randint(1, COPIED_AT_ONCE))
                if records:
                    self._copy(producer, consumer, records)
                    self.pace()
        finally:
            producer.crash()
            consumer.close()

    def _on_assignment(self, _: set[Place]) -> None:
        self.session += 1

    def _copy(self, producer: ProducerPort, consumer: ConsumerPort, records: list[Received]) -> None:
        """Raises ClientError if the outcome is unknown: then a new instance has to look up the position again."""
        offsets = {(each.topic, each.partition): each.offset + 1 for each in records}
        operation = self.recorder.begin(
            Operation(
                self.client,
                COPY,
                polled=reads(records),
                session=self.session,
                from_start=False,
                group=self.group,
                offsets={partition_name(*place): offset for place, offset in offsets.items()},
            )
        )
        try:
            producer.begin()
            for each in records:
                value = self.recorder.next_value()
                operation.copies[value] = number_of(each.value)
                send_recorded(producer, operation, self.target, each.partition, value)
            if self.random.random() < STALL_SHARE:
                self.hang(STALL_S)
            producer.add_offsets(offsets, consumer)
            finish(self, producer, operation, is_commit=self.random.random() >= ABORT_SHARE)
        except ClientError as error:
            if operation.ended_us >= 0:
                raise
            end_aborted(self, producer, operation, str(error))
            if error.remedy is not Remedy.ABORT:
                raise
        if operation.outcome == FAIL:
            self.session += 1
            first: dict[Place, int] = {}
            for each in records:
                first.setdefault((each.topic, each.partition), each.offset)
            consumer.seek(first)
        else:
            assert operation.outcome == OK
