"""A batch that is not all there: refused as no batch, not as a corrupt one, for sending it again would not help."""

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.log.config import TopicConfig
from ottla.log.validation import BatchRules
from ottla.protocol.record_batch import build_batch

WHOLE = build_batch([(1_700_000_000_000, b"k", b"v" * 50, ())])


@pytest.mark.parametrize("size", [1, 10, 16, 17, 20, 60, 61, 80, len(WHOLE) - 1])
def test_part_of_a_batch_is_an_invalid_record(size: int) -> None:
    with pytest.raises(KafkaError) as refused:
        BatchRules(TopicConfig()).open(WHOLE[:size])
    assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(("position", "value"), [(11, 5), (8, 0xFF), (17, 1), (70, 0xFF)])
def test_a_whole_batch_with_spoiled_bytes_is_corrupt(position: int, value: int) -> None:
    spoiled = bytearray(WHOLE)
    spoiled[position] ^= value
    if position == 11:
        spoiled[8:12] = value.to_bytes(4, "big")
    with pytest.raises(KafkaError) as refused:
        BatchRules(TopicConfig()).open(bytes(spoiled))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
