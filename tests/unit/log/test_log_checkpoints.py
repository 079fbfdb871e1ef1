"""Checkpoint files in Kafka's text formats."""

import pytest

from ottla.log.checkpoints import (
    CorruptCheckpoint,
    decode_epochs,
    decode_offsets,
    decode_partition_metadata,
    encode_epochs,
    encode_offsets,
    encode_partition_metadata,
)
from ottla.types import TopicPartition


def test_offsets_are_lines_of_topic_partition_offset() -> None:
    offsets = {TopicPartition("b", 0): 7, TopicPartition("a", 10): 42}
    assert encode_offsets(offsets) == b"0\n2\na 10 42\nb 0 7\n"
    assert decode_offsets(encode_offsets(offsets)) == offsets
    assert decode_offsets(b"0\n0\n") == {} == decode_offsets(b"")


def test_epochs_are_lines_of_epoch_start() -> None:
    assert encode_epochs([(0, 0), (3, 120)]) == b"0\n2\n0 0\n3 120\n"


@pytest.mark.parametrize(
    "data", [b"\n", b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na x 1\n", b"0\nx\n", b"\xff\xfe"]
)
def test_an_invalid_checkpoint_is_rejected(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        decode_offsets(data)


@pytest.mark.parametrize("data", [b"0\n2\n3 0\n2 5\n", b"0\n2\n2 5\n3 0\n"])
def test_epochs_out_of_order_are_rejected(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        decode_epochs(data)


def test_partition_metadata_holds_the_topic_id() -> None:
    topic_id = bytes(range(16))
    assert encode_partition_metadata(topic_id) == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert decode_partition_metadata(b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw") == topic_id
    for damaged in (b"", b"version: 0\n", b"topic_id: short\n"):
        with pytest.raises(CorruptCheckpoint):
            decode_partition_metadata(damaged)
