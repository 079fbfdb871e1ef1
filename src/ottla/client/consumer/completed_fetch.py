"""The result of a fetch for one partition, decoded batch by batch as records are taken. Pure.

For read_committed, the broker sends aborted records too, with a list of the aborted transactions (KIP-98). They are
filtered out here.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ottla.client.core.model import ConsumerRecord
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.records.record_batch import (
    BatchHeader,
    ControlType,
    Section,
    check_crc,
    control_type,
    iter_batches,
    open_section,
    read_records,
    section_records,
)
from ottla.types import TopicPartition


@dataclass(slots=True)
class _Opened:
    """A batch that is being read, and the offset after it and after the hidden batches that follow it."""

    section: Section
    end_offset: int


class CompletedFetch:
    """The fetched batches, and how far they have been read: as records, or as whole sections.

    >>> fetched.take(500)           # up to 500 records
    >>> fetched.next_offset         # the offset to continue at
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
        self._batches: list[tuple[int, BatchHeader]] = []
        try:
            self._batches.extend(iter_batches(data))
        except KafkaError as error:
            # What comes before it is returned first; then the next fetch begins here.
            if not self._batches:
                raise KafkaError(error.code, f"{partition} at offset {fetch_offset}: {error.detail}") from None
        self._batches.reverse()  # so that pop() takes the next one
        if not self._batches and len(data):
            detail = f"a fetch of {partition} at offset {fetch_offset} returned {len(data)} bytes without a whole batch"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, detail)
        last = self._batches[0][1] if self._batches else None
        self.end_offset = max(fetch_offset, last.next_offset) if last is not None else fetch_offset
        """Where the next fetch continues."""
        self.last_epoch = last.partition_leader_epoch if last is not None else -1
        self.epochs = _epochs(self._batches)
        """The leader epochs in order, each as (first offset, epoch)."""
        self._aborted = [(first_offset, producer_id) for producer_id, first_offset in aborted]
        heapq.heapify(self._aborted)
        self._aborted_producers: set[int] = set()
        self._opened: deque[_Opened] = deque()
        """Visible batches in order; the first one may have been read in part."""
        self._records: list[ConsumerRecord] = []
        """The records of the first opened batch."""
        self._taken = 0
        """How many of `_records` were taken."""

    @property
    def is_exhausted(self) -> bool:
        return not self._batches and not self._opened

    @property
    def has_more(self) -> bool:
        """Whether there are batches after those that `sections` returned."""
        return bool(self._batches)

    def take(self, max_records: int) -> list[ConsumerRecord]:
        """The next records, at most `max_records`; fewer, or none, at the end.

        A corrupt batch raises KafkaError once everything before it has been taken.
        """
        taken: list[ConsumerRecord] = []
        while len(taken) < max_records:
            if self._taken == len(self._records):
                try:
                    if not self._opened and not self._open_next():
                        break
                    self._records = self._read(self._opened[0].section)
                except KafkaError:
                    if taken:
                        break
                    raise
                if not self._records:
                    self._close_first()
                continue
            end = min(len(self._records), self._taken + max_records - len(taken))
            part = self._records if end - self._taken == len(self._records) else self._records[self._taken : end]
            taken = taken + part if taken else part
            self._taken = end
            self.next_offset = part[-1].offset + 1
            if end == len(self._records):
                self._close_first()
        return taken

    def sections(self, max_records: int, max_bytes: int) -> list[Section]:
        """The next visible batches, up to about `max_records` or `max_bytes`.

        Their records from `next_offset` on are not taken yet: call `took` after reading them. A corrupt batch raises
        KafkaError once everything before it has been taken.
        """
        self._records, self._taken = [], 0  # from here on only next_offset says what was taken of the first one
        sections: list[Section] = []
        records = size_bytes = 0
        while records < max_records and size_bytes < max_bytes:
            if len(sections) == len(self._opened):
                try:
                    if not self._open_next():
                        break
                except KafkaError:
                    if sections:
                        break
                    raise
            section = self._opened[len(sections)].section
            sections.append(section)
            records += section.header.record_count
            size_bytes += section.end - section.start
        return sections

    def took(self, next_offset: int | None = None) -> None:
        """Continues at `next_offset` within the first opened batch; without it, after that batch."""
        if next_offset is None:
            self._close_first()
        else:
            self.next_offset = max(self.next_offset, next_offset)

    def _close_first(self) -> None:
        self.next_offset = max(self.next_offset, self._opened.popleft().end_offset)
        self._records, self._taken = [], 0

    def _read(self, section: Section) -> list[ConsumerRecord]:
        try:
            records = section_records(section, ConsumerRecord, tuple(self.partition))
        except KafkaError as error:
            raise self.explained(error, section.header) from None
        if records and records[0].offset < self.next_offset:
            # A fetch returns whole batches, so the first one may begin before the requested offset.
            records = [record for record in records if record.offset >= self.next_offset]
        return records

    def _open_next(self) -> bool:
        """Opens the next visible batch and skips hidden ones. False if there are no more."""
        while self._batches:
            position, header = self._batches[-1]
            if header.last_offset >= self.next_offset:
                try:
                    if self._check_crcs:
                        check_crc(self._data, position, header)
                    if not self._is_hidden(position, header):
                        self._opened.append(_Opened(open_section(self._data, position, header), header.next_offset))
                        self._batches.pop()
                        return True
                except KafkaError as error:
                    raise self.explained(error, header) from None
            self._batches.pop()
            if self._opened:
                self._opened[-1].end_offset = header.next_offset
            else:
                self.next_offset = max(self.next_offset, header.next_offset)
        return False

    def explained(self, error: KafkaError, header: BatchHeader) -> KafkaError:
        """The error for a batch that cannot be read: which one it is, and how to continue after it."""
        topic, partition = self.partition
        return KafkaError(
            error.code,
            f"{self.partition} at offset {header.base_offset}: {error.detail}. To skip this batch, call "
            f"seek(TopicPartition({topic!r}, {partition}), {header.next_offset})",
        )

    def _is_hidden(self, position: int, header: BatchHeader) -> bool:
        """Whether a batch is invisible to applications: a control batch, or part of an aborted transaction."""
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
    """The leader epochs of `batches`, which are in reverse order. Epochs only grow; usually there is just one."""
    if not batches:
        return []
    first, last = batches[-1][1], batches[0][1]
    begins = [(first.base_offset, first.partition_leader_epoch)]
    if first.partition_leader_epoch != last.partition_leader_epoch:
        for _, header in reversed(batches):
            if header.partition_leader_epoch != begins[-1][1]:
                begins.append((header.base_offset, header.partition_leader_epoch))
    return begins
