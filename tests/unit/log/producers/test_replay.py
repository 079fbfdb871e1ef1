"""Producer state from stored batches."""

from ottla.log.producers.producer_state import ProducerStateManager
from ottla.log.producers.replay import needs_bytes, note_batch
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.protocol.records.batch_rewriting import rewrite
from ottla.protocol.records.record_batch import BatchHeader, build_batch, control_batch, read_header


def data(offset: int, producer_id: int = 0) -> BatchHeader:
    row = (1, b"k", b"v", ())
    return read_header(
        build_batch(
            [row],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=offset,
            transactional=True,
        )
    )


def marker(offset: int, *, commit: bool, epoch: int = 0) -> bytes:
    return control_batch(
        commit=commit, producer_id=0, producer_epoch=epoch, coordinator_epoch=3, timestamp=1, base_offset=offset
    )


def test_only_the_bytes_of_markers_are_read() -> None:
    """Producer ids begin with 0."""
    abort = marker(1, commit=False)
    assert needs_bytes(read_header(abort))
    assert not needs_bytes(data(0))
    assert not needs_bytes(read_header(rewrite(abort, keep_offsets=())))


def test_a_marker_ends_its_producers_transaction() -> None:
    producers = ProducerStateManager()
    assert note_batch(producers, data(0), None, 0) is None
    assert note_batch(producers, data(1, producer_id=5), None, 0) is None
    abort = marker(2, commit=False)
    assert note_batch(producers, read_header(abort), abort, 0) == AbortedTransaction(0, 0, 2, 1)
    assert producers.has_open_transaction(5, 0)


def test_an_empty_marker_of_compaction_has_only_an_epoch() -> None:
    empty = read_header(rewrite(marker(2, commit=True, epoch=1), keep_offsets=()))
    unknown, known = ProducerStateManager(), ProducerStateManager()
    assert note_batch(unknown, empty, None, 0) is None
    entry = unknown.find(0)
    assert entry is not None
    assert (entry.producer_epoch, entry.coordinator_epoch) == (1, -1)
    commit = marker(0, commit=True)
    note_batch(known, read_header(commit), commit, 0)
    note_batch(known, empty, None, 0)
    entry = known.find(0)
    assert entry is not None
    assert (entry.producer_epoch, entry.coordinator_epoch) == (1, 3)
