"""What one fetch brought of one partition, read batch by batch as records are wanted. Pure.

Under read_committed the records of aborted transactions are passed over here: a broker sends them along, with
the list of transactions they belong to.
"""

import heapq
from collections.abc import Iterable

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.record_batch import (
    BatchHeader,
    ControlType,
    Record,
    check_crc,
    control_type,
    iter_batches,
    read_records,
)
from ottla.types import TopicPartition


class FetchedPartition:
    """Stored batches as they came, and how far they have been read.

    >>> fetched.take(500)           # up to 500 records
    >>> fetched.next_offset         # where reading goes on after those
    """

    def __init__(
        self,
        partition: TopicPartition,
        data: memoryview,
        fetch_offset: int,
        *,
        aborted: Iterable[tuple[int, int]] = (),
        check_crcs: bool = True,
    ) -> None:
        """`aborted` holds (producer id, first offset) of the aborted transactions; empty for read_uncommitted."""
        self.partition = partition
        self.next_offset = fetch_offset
        self.size_bytes = len(data)
        self._data = data
        self._check_crcs = check_crcs
        self._batches: list[tuple[int, BatchHeader]] = list(iter_batches(data))
        self._batches.reverse()  # the next one is taken from the end
        if not self._batches and len(data):
            detail = f"{partition} sent {len(data)} bytes at offset {fetch_offset} and no whole batch in them"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, detail)
        last = self._batches[0][1] if self._batches else None
        self.end_offset = max(fetch_offset, last.next_offset) if last is not None else fetch_offset
        """Where the next fetch continues."""
        self.last_epoch = last.partition_leader_epoch if last is not None else -1
        self.epochs = _epochs(self._batches)
        """Where each leader epoch begins: (offset, epoch), in order."""
        self._aborted = [(first_offset, producer_id) for producer_id, first_offset in aborted]
        heapq.heapify(self._aborted)
        self._aborted_producers: set[int] = set()
        self._records: list[Record] = []
        self._taken = 0
        self._records_end = fetch_offset

    @property
    def is_exhausted(self) -> bool:
        return not self._batches and self._taken == len(self._records)

    def take(self, max_records: int) -> list[Record]:
        """The next records, at most so many; fewer (or none) when there are no more."""
        taken: list[Record] = []
        while len(taken) < max_records:
            if self._taken == len(self._records):
                self.next_offset = max(self.next_offset, self._records_end)
                if not self._batches:
                    break
                self._open(*self._batches.pop())
                continue
            end = min(len(self._records), self._taken + max_records - len(taken))
            part = self._records if end - self._taken == len(self._records) else self._records[self._taken : end]
            taken = taken + part if taken else part
            self._taken = end
            self.next_offset = part[-1].offset + 1
        if self._taken == len(self._records):
            self.next_offset = max(self.next_offset, self._records_end)
        return taken

    def _open(self, position: int, header: BatchHeader) -> None:
        """Makes a batch's records the next to be taken, or passes over the whole batch."""
        self._records, self._taken = [], 0
        self._records_end = header.next_offset
        if header.last_offset < self.next_offset:
            return
        if self._check_crcs:
            try:
                check_crc(self._data, position, header)
            except KafkaError as error:
                detail = f"{self.partition} at offset {header.base_offset}: {error.detail}"
                raise KafkaError(error.code, detail) from None
        if self._is_hidden(position, header):
            return
        records = read_records(self._data, position, header)
        if records and records[0].offset < self.next_offset:
            # A fetch gives whole batches, so the first may begin before the offset that was asked for.
            records = [record for record in records if record.offset >= self.next_offset]
        self._records = records

    def _is_hidden(self, position: int, header: BatchHeader) -> bool:
        """Whether a batch is never shown: a control batch, or part of an aborted transaction."""
        while self._aborted and self._aborted[0][0] <= header.last_offset:
            self._aborted_producers.add(heapq.heappop(self._aborted)[1])
        if header.is_control:
            if header.producer_id in self._aborted_producers:
                records = read_records(self._data, position, header)
                if records and control_type(records[0].key) == ControlType.ABORT:
                    self._aborted_producers.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._aborted_producers


def _epochs(batches: list[tuple[int, BatchHeader]]) -> list[tuple[int, int]]:
    """The leader epochs of batches that stand in reverse. They only ever grow: nearly always there is one."""
    if not batches:
        return []
    first, last = batches[-1][1], batches[0][1]
    begins = [(first.base_offset, first.partition_leader_epoch)]
    if first.partition_leader_epoch != last.partition_leader_epoch:
        for _, header in reversed(batches):
            if header.partition_leader_epoch != begins[-1][1]:
                begins.append((header.base_offset, header.partition_leader_epoch))
    return begins
