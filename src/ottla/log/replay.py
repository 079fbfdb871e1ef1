"""Takes note of batches already in a log: what followers, recovery and truncation do instead of checking. Pure."""

from ottla.log.producer_state import CompletedTransaction, ProducerStateManager
from ottla.log.transaction_index import AbortedTransaction
from ottla.protocol.record_batch import BatchHeader, BytesLike, ControlType, read_end_marker

_TRANSACTIONAL = 0x10
_CONTROL = 0x20


def needs_bytes(header: BatchHeader) -> bool:
    """Whether the records of the batch matter to the producers' state: only an end marker's do."""
    return header.producer_id >= 0 and bool(header.attributes & _CONTROL) and header.record_count > 0


def note_batch(
    producers: ProducerStateManager, header: BatchHeader, batch: BytesLike | None, now: int
) -> AbortedTransaction | None:
    """Updates `producers` with one batch; gives the entry for the transaction index if it aborts a transaction.

    `batch` may be None where `needs_bytes` says so.
    """
    if header.producer_id < 0:
        return None
    if not header.attributes & _CONTROL:
        producers.update(
            header.producer_id,
            header.producer_epoch,
            header.base_offset,
            header.last_offset,
            header.last_sequence,
            header.max_timestamp,
            transactional=bool(header.attributes & _TRANSACTIONAL),
            now=now,
        )
        return None
    if not header.record_count:
        # Compaction kept the husk of a marker for its epoch alone.
        entry = producers.find(header.producer_id)
        producers.update_marker(
            header.producer_id,
            header.producer_epoch,
            header.last_offset,
            header.max_timestamp,
            aborted=False,
            coordinator_epoch=-1 if entry is None else entry.coordinator_epoch,
            now=now,
        )
        return None
    assert batch is not None
    kind, coordinator_epoch = read_end_marker(batch)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    completed = producers.update_marker(
        header.producer_id,
        header.producer_epoch,
        header.last_offset,
        header.max_timestamp,
        aborted=kind is ControlType.ABORT,
        coordinator_epoch=coordinator_epoch,
        now=now,
    )
    return aborted_entry(producers, completed)


def aborted_entry(producers: ProducerStateManager, completed: CompletedTransaction | None) -> AbortedTransaction | None:
    if completed is None or not completed.aborted:
        return None
    return AbortedTransaction(
        completed.producer_id,
        completed.first_offset,
        completed.last_offset,
        producers.last_stable_offset_after(completed),
    )
