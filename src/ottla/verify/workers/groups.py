"""Workload groups: members join and leave, and commit the records they received."""

from ottla.verify.clients.port import ClientError, ConsumerPort, Place
from ottla.verify.history import (
    ASSIGNED,
    COMMIT,
    COMMITTED,
    FETCH_OFFSETS,
    OK,
    POLL,
    UNKNOWN,
    Operation,
    partition_name,
)
from ottla.verify.workers.list_append import POLL_RECORDS, POLL_S
from ottla.verify.workers.recorder import reads
from ottla.verify.workers.worker import Setup, Worker


class Member(Worker):
    """A member of a group. It leaves and rejoins now and then."""

    def __init__(self, setup: Setup, topic: str, *, group: str) -> None:
        super().__init__(setup)
        self.topic, self.group = topic, group
        self._owned: set[Place] | None = None
        """Set from a change of the assignment until it is recorded."""
        self._generation = -1

    def live(self) -> None:
        consumer = self.library.consumer(self.client, COMMITTED, self.group)
        self._owned = None
        try:
            consumer.subscribe(self.topic, self._on_assignment)
            is_alive = self.lifetime(4, 25)
            while is_alive():
                self._poll(consumer)
        finally:
            consumer.close()

    def _on_assignment(self, owned: set[Place]) -> None:
        self.session += 1
        self._owned = owned

    def _poll(self, consumer: ConsumerPort) -> None:
        started_us = self.recorder.now_us()
        records = consumer.poll(POLL_S, self.random.randint(1, POLL_RECORDS))
        if self._owned is not None:
            self._note_assignment(consumer, self._owned)
            self._owned = None
        if not records:
            return
        operation = self.recorder.begin(
            Operation(
                self.client,
                POLL,
                polled=reads(records),
                session=self.session,
                from_start=False,
                group=self.group,
                generation=self._generation,
            )
        )
        operation.started_us = started_us
        self.recorder.end(operation, OK)
        self._commit(consumer, {(each.topic, each.partition): each.offset + 1 for each in records})
        self.pace()

    def _note_assignment(self, consumer: ConsumerPort, owned: set[Place]) -> None:
        self._generation = consumer.generation()
        partitions = sorted(partition_name(*place) for place in owned)
        assigned = self.recorder.begin(
            Operation(
                self.client,
                ASSIGNED,
                session=self.session,
                group=self.group,
                generation=self._generation,
                offsets=dict.fromkeys(partitions, -1),
            )
        )
        self.recorder.end(assigned, OK)
        if owned:
            fetch_offsets(self, consumer, owned, self.group)

    def _commit(self, consumer: ConsumerPort, offsets: dict[Place, int]) -> None:
        operation = self.recorder.begin(
            Operation(
                self.client,
                COMMIT,
                session=self.session,
                group=self.group,
                generation=self._generation,
                offsets={partition_name(*place): offset for place, offset in offsets.items()},
            )
        )
        try:
            consumer.commit(offsets)
        except ClientError as error:
            # A member that has lost its partitions gets an error; the next poll() rejoins.
            self.recorder.end(operation, UNKNOWN, str(error))
            self.note(error)
        else:
            self.recorder.end(operation, OK)


def fetch_offsets(worker: Worker, consumer: ConsumerPort, places: set[Place], group: str) -> None:
    """Looks up committed offsets and records the response."""
    operation = worker.recorder.begin(Operation(worker.client, FETCH_OFFSETS, session=worker.session, group=group))
    try:
        found = consumer.committed(places)
    except ClientError as error:
        worker.recorder.end(operation, UNKNOWN, str(error))
        worker.note(error)
        return
    operation.offsets = {partition_name(*place): offset for place, offset in found.items()}
    worker.recorder.end(operation, OK)
