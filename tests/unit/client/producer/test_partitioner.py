"""Partitioning: by key like the Java client, sticky without a key."""

import itertools
import random

import pytest

from ottla.client.producer.partitioner import StickyPartitioner, murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_murmur2_matches_the_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


def test_equal_keys_share_a_partition_within_range() -> None:
    for number in range(1000):
        key = f"key-{number}".encode()
        assert 0 <= partition_for_key(key, 7) < 7
        assert partition_for_key(key, 7) == partition_for_key(bytes(key), 7)


def test_records_without_a_key_stick_to_a_partition_until_a_batch_is_full() -> None:
    sticky = StickyPartitioner(1000, random.Random(1).choice, lambda topic: [0, 1, 2])
    chosen = [sticky.partition("t", 100) for _ in range(100)]
    runs = [chosen[i : i + 10] for i in range(0, 100, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(before[0] != after[0] for before, after in itertools.pairwise(runs))
    assert {run[0] for run in runs} == {0, 1, 2}


def test_a_single_partition_is_always_chosen() -> None:
    sticky = StickyPartitioner(10, random.Random(1).choice, lambda topic: [0])
    assert {sticky.partition("t", 100) for _ in range(20)} == {0}
