"""Kafka's checkpoint text files: offsets per partition, leader epochs, a partition's topic id. Pure."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from ottla.types import TopicPartition, uuid_from_text, uuid_to_text


class CorruptCheckpoint(ValueError):
    """A checkpoint file with invalid content."""


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """A version, a count, and one line `topic partition offset` per partition.

    >>> encode_offsets({TopicPartition("orders", 3): 42})
    b'0\\n1\\norders 3 42\\n'
    """
    return _encode(f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items()))


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Offsets by partition; CorruptCheckpoint if invalid. An empty file is valid: Kafka creates it before first use."""
    found: dict[TopicPartition, int] = {}
    if not data:
        return found
    for topic, partition, offset in _decode(data, 3):
        found[TopicPartition(topic, _number(partition))] = _number(offset)
    return found


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """Lines `epoch start_offset`, oldest first, as in leader-epoch-checkpoint."""
    return _encode(f"{epoch} {start_offset}" for epoch, start_offset in epochs)


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    epochs = [(_number(epoch), _number(start)) for epoch, start in _decode(data, 2)]
    for (epoch, start), (next_epoch, next_start) in pairwise(epochs):
        if epoch >= next_epoch or start > next_start:
            raise CorruptCheckpoint(
                f"epoch {next_epoch} (offset {next_start}) follows epoch {epoch} (offset {start}): not in order"
            )
    return epochs


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {uuid_to_text(topic_id)}\n".encode()


def decode_partition_metadata(data: bytes) -> bytes:
    fields = dict(line.partition(":")[::2] for line in data.decode(errors="replace").splitlines())
    try:
        return uuid_from_text(fields["topic_id"].strip())
    except (KeyError, ValueError) as error:
        raise CorruptCheckpoint(f"no topic id: {error}") from None


def _encode(lines: Iterable[str]) -> bytes:
    listed = list(lines)
    return "\n".join(["0", str(len(listed)), *listed, ""]).encode()


def _decode(data: bytes, columns: int) -> list[list[str]]:
    version, count, *lines = [*data.decode(errors="replace").splitlines(), "", ""]
    lines = [line for line in lines if line]
    rows = [line.split(" ") for line in lines]
    if version != "0" or count != str(len(rows)) or any(len(row) != columns for row in rows):
        raise CorruptCheckpoint(f"version {version!r}, row count {count!r}, found {len(rows)} rows")
    return rows


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CorruptCheckpoint(f"{text!r} is not a number") from None
