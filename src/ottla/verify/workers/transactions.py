"""Workload transactions: transactions that send to several partitions, read, commit offsets, and sometimes abort."""

from ottla.verify.clients.port import ClientError, ConsumerPort, Place, ProducerPort, Remedy
from ottla.verify.history import COMMITTED, FAIL, OK, TRANSACTION, UNKNOWN, Operation, Sent, partition_name
from ottla.verify.workers.recorder import reads
from ottla.verify.workers.worker import Setup, Worker

COMMIT_ATTEMPTS = 3
ABORT_SHARE = 0.2
OFFSETS_SHARE = 0.5
"""The fraction that commits offsets, of the transactions that have received records."""
CRASH_SHARE = 0.02
ZOMBIE_SHARE = 0.03
"""The fraction of transactions that another instance fences before they end, and that continue anyway."""


def finish(worker: Worker, producer: ProducerPort, operation: Operation, *, is_commit: bool) -> None:
    """Commits or aborts a transaction and records its outcome. Raises ClientError if the producer is unusable.

    Unless its commit was requested, the transaction certainly fails.
    """
    recorder = worker.recorder
    if not is_commit:
        end_aborted(worker, producer, operation)
        return
    operation.end_started_us = recorder.now_us()
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            producer.commit()
        except ClientError as error:
            if error.remedy is Remedy.ABORT:
                try:
                    producer.abort()
                except ClientError as second:
                    recorder.end(operation, UNKNOWN, f"{error}; {second}")
                    raise
                recorder.end(operation, FAIL, str(error))
                return
            if error.remedy is Remedy.RESTART or attempt == COMMIT_ATTEMPTS or worker.is_ending:
                recorder.end(operation, UNKNOWN, str(error))
                raise
        else:
            recorder.end(operation, OK)
            return


def end_aborted(worker: Worker, producer: ProducerPort, operation: Operation, why: str = "") -> None:
    """Aborts. Even if that fails, the transaction cannot become committed: its commit was never requested."""
    operation.end_started_us = worker.recorder.now_us()
    try:
        producer.abort()
    except ClientError as error:
        worker.recorder.end(operation, FAIL, why or str(error))
        raise
    worker.recorder.end(operation, FAIL, why)


class TransactionWorker(Worker):
    """Transactions of up to four steps, each a send or a poll."""

    def __init__(self, setup: Setup, topic: str, partitions: int, *, transactional_id: str, group: str) -> None:
        super().__init__(setup)
        self.topic, self.partitions = topic, partitions
        self.transactional_id, self.group = transactional_id, group
        self._highest: dict[Place, int] = {}
        """The offsets of the last attempted commit."""

    def live(self) -> None:
        consumer = self.library.consumer(self.client, COMMITTED, self.group)
        try:
            consumer.assign([(self.topic, partition) for partition in range(self.partitions)])
            reading = self.session
            is_alive = self.lifetime(30, 120)
            while is_alive():
                try:
                    self._instance(consumer, reading)
                except ClientError as error:
                    self.note(error)
        finally:
            consumer.close()

    def _instance(self, consumer: ConsumerPort, reading: int) -> None:
        """One producer, until an error that it cannot recover from. The consumer outlives it."""
        producer = self.library.producer(self.client, self.transactional_id)
        try:
            producer.init()
            while not self.is_ending:
                operation = self.recorder.begin(
                    Operation(self.client, TRANSACTION, session=reading, isolation=COMMITTED)
                )
                try:
                    self._transact(producer, consumer, operation)
                except ClientError as error:
                    if operation.ended_us >= 0:
                        raise
                    # The commit was not requested yet.
                    end_aborted(self, producer, operation, str(error))
                    if error.remedy is not Remedy.ABORT:
                        raise
                self.pace()
                if self.random.random() < CRASH_SHARE:
                    return
        finally:
            producer.crash()

    def _transact(self, producer: ProducerPort, consumer: ConsumerPort, operation: Operation) -> None:
        producer.begin()
        offsets: dict[Place, int] = {}
        for _ in range(self.random.randint(1, 4)):
            if self.random.random() < 0.6:
                self._send(producer, operation)
            else:
                records = consumer.poll(0.02, 50)
                operation.polled += reads(records)
                offsets |= {(each.topic, each.partition): each.offset + 1 for each in records}
        # A new consumer reads from the beginning again, but committed offsets must not step back.
        offsets = {place: offset for place, offset in offsets.items() if offset > self._highest.get(place, 0)}
        if offsets and self.random.random() < OFFSETS_SHARE:
            self._highest |= offsets
            operation.group = self.group
            operation.offsets = {partition_name(*place): offset for place, offset in offsets.items()}
            producer.add_offsets(offsets, consumer)
        if self.random.random() < CRASH_SHARE:
            # Leaves it open: the next instance, or the timeout, aborts it.
            self.recorder.end(operation, FAIL, "abandoned before the commit")
            raise ClientError("abandoned", Remedy.RESTART)
        is_commit = self.random.random() >= ABORT_SHARE
        if operation.sent and self.random.random() < ZOMBIE_SHARE:
            self._fence()
            # The records so far are aborted: neither they nor this one may ever become visible.
            self._send(producer, operation)
            is_commit = True
        finish(self, producer, operation, is_commit=is_commit)

    def _fence(self) -> None:
        """Another instance with the same transactional id takes over for a moment."""
        other = self.library.producer(f"{self.client}-heir", self.transactional_id)
        try:
            other.init()
        finally:
            other.crash()

    def _send(self, producer: ProducerPort, operation: Operation) -> None:
        partition, value = self.random.randrange(self.partitions), self.recorder.next_value()
        send_recorded(producer, operation, self.topic, partition, value)


def send_recorded(producer: ProducerPort, operation: Operation, topic: str, partition: int, value: int) -> None:
    """Sends a record as a part of an operation; its offset is noted when it is acknowledged."""
    index = len(operation.sent)
    sent = Sent(partition_name(topic, partition), value)
    operation.sent.append(sent)

    def delivered(offset: int, error: str) -> None:
        if not error:
            operation.sent[index] = sent._replace(offset=offset)

    producer.send(topic, partition, b"%d" % value, delivered)
