"""Updates producer state from stored batches, without checks: for followers, recovery and truncation. Pure."""

from ottla.log.producers.producer_state import ProducerStateManager
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.protocol.records.batch_layout import CONTROL
from ottla.protocol.records.record_batch import BatchHeader, BytesLike, ControlType, read_end_marker


def needs_bytes(header: BatchHeader) -> bool:
    """Whether the producer state depends on the batch's records: only for transaction markers."""
    return header.producer_id >= 0 and bool(header.attributes & CONTROL) and header.record_count > 0


def note_batch(
    producers: ProducerStateManager, header: BatchHeader, batch: BytesLike | None, monotonic_ms: int
) -> AbortedTransaction | None:
    """Updates `producers` with one batch. Returns a transaction index entry if the batch aborts a transaction.

    `batch` can be None if `needs_bytes` is false.
    """
    if header.producer_id < 0:
        return None
    if not header.attributes & CONTROL:
        producers.update(header, header.base_offset, monotonic_ms)
        return None
    if not header.record_count:
        # An empty control batch: compaction kept it only for its producer epoch.
        entry = producers.find(header.producer_id)
        coordinator_epoch = -1 if entry is None else entry.coordinator_epoch
        producers.update_marker(
            header, header.last_offset, monotonic_ms, aborted=False, coordinator_epoch=coordinator_epoch
        )
        return None
    assert batch is not None
    return note_marker(producers, header, read_end_marker(batch), header.last_offset, monotonic_ms)


def note_marker(
    producers: ProducerStateManager,
    header: BatchHeader,
    marker: tuple[ControlType, int],
    offset: int,
    monotonic_ms: int,
) -> AbortedTransaction | None:
    """Updates `producers` with the marker at `offset`. Returns a transaction index entry if it aborts a transaction."""
    kind, coordinator_epoch = marker
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    completed = producers.update_marker(
        header, offset, monotonic_ms, aborted=kind is ControlType.ABORT, coordinator_epoch=coordinator_epoch
    )
    if completed is None or not completed.aborted:
        return None
    return AbortedTransaction(
        completed.producer_id,
        completed.first_offset,
        completed.last_offset,
        producers.last_stable_offset_after(completed),
    )
