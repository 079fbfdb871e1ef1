"""Workload list-append: idempotent producers, and consumers that read everything, assigned or subscribed."""

from ottla.verify.clients.port import ClientError, ConsumerPort, Place, ProducerPort
from ottla.verify.history import OK, POLL, SEND, UNKNOWN, Operation, Sent, partition_name
from ottla.verify.workers.recorder import reads
from ottla.verify.workers.worker import Setup, Worker

IN_FLIGHT_MAX = 20
POLL_S = 0.1
POLL_RECORDS = 200


class Sender(Worker):
    """Sends records to random partitions, several in flight, with a new producer now and then."""

    def __init__(self, setup: Setup, topic: str, partitions: int, *, lives_s: tuple[float, float] = (10, 40)) -> None:
        super().__init__(setup)
        self.topic, self.partitions, self.lives_s = topic, partitions, lives_s

    def live(self) -> None:
        producer = self.library.producer(self.client)
        is_alive = self.lifetime(*self.lives_s)
        pending: list[Operation] = []
        try:
            while is_alive():
                pending = [each for each in pending if each.ended_us < 0]
                if len(pending) >= IN_FLIGHT_MAX:
                    producer.serve(0.02)
                else:
                    self._send(producer, pending)
                    producer.serve(0)
                self.pace()
            # Most instances end cleanly: otherwise the outcome of the last records of each would be unknown.
            if self.random.random() < 0.7:
                self._drain(producer, pending)
        finally:
            producer.crash()
            for each in pending:
                self.recorder.give_up(each, "the producer was abandoned")

    def _drain(self, producer: ProducerPort, pending: list[Operation]) -> None:
        deadline = self.recorder.now_us() + 5_000_000
        while any(each.ended_us < 0 for each in pending) and self.recorder.now_us() < deadline:
            producer.serve(0.01)
            self.pace()

    def _send(self, producer: ProducerPort, pending: list[Operation]) -> None:
        partition, value = self.random.randrange(self.partitions), self.recorder.next_value()
        sent = Sent(partition_name(self.topic, partition), value)
        operation = self.recorder.begin(Operation(self.client, SEND, sent=[sent], session=self.session))
        pending.append(operation)

        def delivered(offset: int, error: str) -> None:
            if not error:
                operation.sent[0] = sent._replace(offset=offset)
            self.recorder.end(operation, UNKNOWN if error else OK, error)

        try:
            producer.send(self.topic, partition, b"%d" % value, delivered)
        except ClientError as error:
            # It may have been queued anyway.
            self.recorder.end(operation, UNKNOWN, str(error))
            raise


class Reader(Worker):
    """Reads a topic from the beginning: assigned to all partitions, or as the only member of a group."""

    def __init__(self, setup: Setup, topic: str, partitions: int, *, isolation: str, group: str = "") -> None:
        super().__init__(setup)
        self.topic, self.partitions, self.isolation, self.group = topic, partitions, isolation, group
        self.is_from_start = True

    def live(self) -> None:
        consumer = self.library.consumer(self.client, self.isolation, self.group)
        try:
            if self.group:
                self.is_from_start = False
                consumer.subscribe(self.topic, self._on_assignment)
            else:
                consumer.assign([(self.topic, partition) for partition in range(self.partitions)])
            is_alive = self.lifetime(30, 120)
            while is_alive():
                self._poll(consumer)
        finally:
            consumer.close()

    def _on_assignment(self, _: set[Place]) -> None:
        self.session += 1

    def _poll(self, consumer: ConsumerPort) -> None:
        started_us = self.recorder.now_us()
        records = consumer.poll(POLL_S, POLL_RECORDS)
        if records:
            # Polls without records are not recorded: there are very many.
            operation = self.recorder.begin(
                Operation(
                    self.client,
                    POLL,
                    polled=reads(records),
                    session=self.session,
                    isolation=self.isolation,
                    from_start=self.is_from_start,
                )
            )
            operation.started_us = started_us
            self.recorder.end(operation, OK)
