"""A partition's producer state: epochs, sequence numbers, open and completed transactions. Pure.

`check` and `check_marker` reject batches that must not be appended and change nothing; `update` and `update_marker`
record what was appended. Leader, follower and recovery use the same updates, so a new leader or a restarted broker
recognises the same duplicates as before.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.records.batch_layout import TRANSACTIONAL
from ottla.protocol.records.record_batch import BatchHeader
from ottla.types import INT32_MAX

CACHED_BATCHES = 5
"""A producer has at most this many requests in flight, so any of its last five batches can be retried."""

NO_SEQUENCE = -1


class BatchMetadata(NamedTuple):
    """One appended batch: what is needed to recognise a retry."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 or self.last_sequence < 0 else first + INT32_MAX + 1

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class VerificationGuard(NamedTuple):
    """When a transaction's partition was verified: in which leader epoch, and after how many of the producer's markers.

    It is valid in that leader epoch only: markers that another leader wrote since are not counted here, and a
    truncation may have reset the count.
    """

    leader_epoch: int
    markers_seen: int


class CompletedTransaction(NamedTuple):
    """A transaction whose marker was appended at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class ProducerEntry:
    """One producer's state in this partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "last_seen_ms",
        "last_timestamp",
        "markers_seen",
        "next_sequence",
        "producer_epoch",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = -1
        self.batches: list[BatchMetadata] = []
        """The last batches of the current epoch, oldest first."""
        self.next_sequence = 0
        self.transaction_first_offset: int | None = None
        self.last_timestamp = -1
        """The timestamp of the last batch or marker."""
        self.last_seen_ms = 0
        """When it last wrote, in monotonic time: record timestamps are arbitrary and must not drive expiration."""
        self.markers_seen = 0

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        """The offset of the last record written in this epoch, -1 if there is none."""
        return self.batches[-1].last_offset if self.batches else -1

    def add_batch(self, batch: BatchMetadata) -> None:
        self.batches.append(batch)
        if len(self.batches) > CACHED_BATCHES:
            del self.batches[0]
        last = batch.last_sequence
        self.next_sequence = 0 if last == INT32_MAX else last + 1

    def begin_epoch(self, epoch: int) -> None:
        if epoch != self.producer_epoch:
            self.producer_epoch = epoch
            self.batches.clear()
            self.next_sequence = 0

    def find_duplicate(self, epoch: int, first_sequence: int, last_sequence: int) -> BatchMetadata | None:
        if epoch == self.producer_epoch:
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                    return batch
        return None


class ProducerStateManager:
    """All producers of one partition, and the start of the earliest open transaction."""

    __slots__ = ("_entries", "_ongoing", "first_unstable_offset", "unreplicated")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        # Open transactions, first offset -> producer id. They start in log order, so the first key is the smallest.
        self._ongoing: dict[int, int] = {}
        self.unreplicated: dict[int, int] = {}
        """Completed transactions whose marker is not yet below the high watermark: first offset -> marker's offset."""
        self.first_unstable_offset: int | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def entries(self) -> list[ProducerEntry]:
        return list(self._entries.values())

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether this epoch has an open transaction here, so the coordinator already verified the partition."""
        entry = self._entries.get(producer_id)
        return (
            entry is not None and entry.transaction_first_offset is not None and entry.producer_epoch == producer_epoch
        )

    def verification_guard(self, producer_id: int, leader_epoch: int) -> VerificationGuard:
        """KIP-890: take this before asking the coordinator about a transaction, and pass it with the append.

        A marker that arrives in between changes it, and the append, which belongs to an ended transaction, is rejected.
        """
        entry = self._entries.get(producer_id)
        return VerificationGuard(leader_epoch, 0 if entry is None else entry.markers_seen)

    # --- before the append --------------------------------------------------------------------------------

    def check(
        self,
        header: BatchHeader,
        *,
        check_sequence: bool = True,
        require_known_start: bool = False,
        guard: VerificationGuard | None = None,
    ) -> BatchMetadata | None:
        """Rejects a data batch that is out of sequence. Returns the original batch if it is a duplicate.

        `require_known_start`: a producer without state here must start at sequence 0 (transaction version 2, KIP-890).
        `guard` is the value of `verification_guard` from before the coordinator was asked about the transaction.
        """
        producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
        entry = self._entries.get(producer_id)
        if entry is None:
            if require_known_start and check_sequence and sequence != 0:
                raise self._out_of_order(header, "the producer is unknown here, expected sequence 0")
            return None
        if (
            guard is not None
            and guard.markers_seen != entry.markers_seen
            and not self.has_open_transaction(producer_id, epoch)
        ):
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"producer {producer_id}: the transaction ended during verification"
            )
        known_epoch = entry.producer_epoch
        if check_sequence and (epoch != known_epoch or sequence != entry.next_sequence):
            duplicate = entry.find_duplicate(epoch, sequence, header.last_sequence)
            if duplicate is not None:
                return duplicate
        if epoch < known_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id}: epoch {epoch} is older than {known_epoch}"
            )
        if check_sequence and sequence != (entry.next_sequence if epoch == known_epoch else 0):
            raise self._out_of_order(header, f"expected {entry.next_sequence} of epoch {known_epoch}")
        if entry.transaction_first_offset is not None and not header.attributes & TRANSACTIONAL:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id}: non-transactional batch while a transaction is open "
                f"(since offset {entry.transaction_first_offset})",
            )
        return None

    @staticmethod
    def _out_of_order(header: BatchHeader, known: str) -> KafkaError:
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id}: sequence {header.base_sequence} of epoch {header.producer_epoch}: {known}",
        )

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, transaction_version: int = 0
    ) -> None:
        """Rejects a marker with a stale producer epoch or coordinator epoch."""
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        is_open = entry.transaction_first_offset is not None
        # From transaction version 2 on (KIP-890), ending a transaction bumps the epoch. A marker with the current
        # epoch, while a transaction is open, is therefore a late one of an earlier transaction.
        stale = producer_epoch < entry.producer_epoch or (
            transaction_version >= 2 and producer_epoch == entry.producer_epoch and is_open
        )
        if stale:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id}: marker of epoch {producer_epoch} is stale, "
                f"current epoch is {entry.producer_epoch}",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"producer {producer_id}: coordinator epoch {coordinator_epoch} is older than "
                f"{entry.coordinator_epoch}",
            )

    # --- after the append ---------------------------------------------------------------------------------

    def update(self, header: BatchHeader, base_offset: int, monotonic_ms: int) -> None:
        """Records a data batch appended at `base_offset`."""
        _, _, _, _, _, attributes, delta, _, timestamp, producer_id, epoch, sequence, _ = header
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id, epoch)
        elif epoch != entry.producer_epoch:
            entry.begin_epoch(epoch)
        last_sequence = (sequence + delta) & INT32_MAX if sequence >= 0 else NO_SEQUENCE
        entry.add_batch(BatchMetadata(last_sequence, base_offset + delta, delta, timestamp))
        entry.last_timestamp = timestamp
        entry.last_seen_ms = monotonic_ms
        if attributes & TRANSACTIONAL and entry.transaction_first_offset is None:
            entry.transaction_first_offset = base_offset
            self._ongoing[base_offset] = producer_id
            if self.first_unstable_offset is None:
                self.first_unstable_offset = base_offset

    def update_marker(
        self, header: BatchHeader, offset: int, monotonic_ms: int, *, aborted: bool, coordinator_epoch: int
    ) -> CompletedTransaction | None:
        """Records an appended transaction marker. Returns the transaction it completed, if it had any records here.

        The transaction holds back the last stable offset until the marker is committed: see `on_high_watermark`.
        """
        producer_id = header.producer_id
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id, header.producer_epoch)
        entry.begin_epoch(header.producer_epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        entry.last_seen_ms = monotonic_ms
        entry.markers_seen += 1
        first_offset, entry.transaction_first_offset = entry.transaction_first_offset, None
        if first_offset is None:
            return None
        self._ongoing.pop(first_offset, None)
        self.unreplicated[first_offset] = offset
        return CompletedTransaction(producer_id, first_offset, offset, aborted)

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset after `completed`: the start of the first transaction that is still open."""
        return next(iter(self._ongoing), completed.last_offset + 1)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Transactions with a marker below the high watermark no longer hold back the last stable offset."""
        if self.unreplicated:
            for first_offset, marker in list(self.unreplicated.items()):
                if marker < high_watermark:
                    del self.unreplicated[first_offset]
            self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        candidates = [*list(self._ongoing)[:1], *self.unreplicated]
        self.first_unstable_offset = min(candidates) if candidates else None

    def expire(self, monotonic_ms: int, expiration_ms: int) -> int:
        """Removes producers that are idle and have no open transaction. Returns how many."""
        silent = [
            entry.producer_id
            for entry in self._entries.values()
            if entry.transaction_first_offset is None and monotonic_ms - entry.last_seen_ms >= expiration_ms
        ]
        for producer_id in silent:
            del self._entries[producer_id]
        return len(silent)

    def clear(self) -> None:
        self._entries.clear()
        self._ongoing.clear()
        self.unreplicated.clear()
        self.first_unstable_offset = None

    def load(self, entries: Iterable[ProducerEntry]) -> None:
        """Replaces the state by a snapshot's."""
        self.clear()
        self._entries = {entry.producer_id: entry for entry in entries}
        open_transactions = [
            (entry.transaction_first_offset, entry.producer_id)
            for entry in self._entries.values()
            if entry.transaction_first_offset is not None
        ]
        self._ongoing = dict(sorted(open_transactions))
        self._find_first_unstable()
