"""`__transaction_state`, byte for byte Kafka's. Spec: E4."""

import pytest

from ottla.coordinator.transaction.transaction import (
    Transaction,
    TransactionState,
    read_transaction_key,
    read_transaction_value,
    transaction_key,
    transaction_value,
)
from tests.support.worlds.transaction_world import NEW, TransactionWorld, places

S = TransactionState
AT = 1_700_000_000_000

EMPTY = Transaction("txn", 1000, 0, 60_000, S.EMPTY, frozenset(), -1, AT)
ONGOING = Transaction("txn", 1000, 3, 60_000, S.ONGOING, frozenset(places("t-0", "t-1")), AT, AT + 500)
WITH_TAGS = ONGOING._replace(previous_producer_id=1000, client_version=2)


@pytest.mark.parametrize(
    ("transaction", "version", "golden"),
    [
        (EMPTY, 0, "000000000000000003e800000000ea6000ffffffff0000018bcfe56800ffffffffffffffff"),
        (
            ONGOING,
            0,
            "000000000000000003e800030000ea6001000000010001740000000200000000000000010000018bcfe569f40000018bcfe56800",
        ),
        (
            WITH_TAGS,
            1,
            "000100000000000003e800030000ea6001020274030000000000000001000000018bcfe569f40000018bcfe56800"
            "02000800000000000003e802020002",
        ),
    ],
    ids=["empty", "ongoing", "with tags"],
)
def test_stored_values_are_kafkas_bytes(transaction: Transaction, version: int, golden: str) -> None:
    assert transaction_value(transaction, version).hex() == golden
    assert read_transaction_value("txn", bytes.fromhex(golden)) == transaction


def test_the_key_is_kafkas() -> None:
    assert transaction_key("txn").hex() == "0000000374786e"
    assert read_transaction_key(bytes.fromhex("0000000374786e")) == "txn"
    assert read_transaction_key(b"\0\1whatever") is None, "a future record type"


def test_states_have_kafkas_numbers_and_names() -> None:
    names = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead"]
    assert [(int(state), str(state)) for state in S] == list(enumerate([*names, "PrepareEpochFence"]))
    for state in TransactionState:
        assert transaction_value(ONGOING._replace(state=state), 0)[16] == state, "the byte after the timeout"


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("state", list(TransactionState))
def test_every_state_is_read_back_unchanged(state: TransactionState, version: int) -> None:
    partitions = frozenset() if state is S.EMPTY else frozenset(places("a-0", "a-7", "b-2", "__consumer_offsets-49"))
    transaction = Transaction("é", 2**62, 32_767, 1, state, partitions, -1 if not partitions else AT, AT)
    assert read_transaction_value("é", transaction_value(transaction, version)) == transaction


def test_every_tag_is_read_back() -> None:
    transaction = ONGOING._replace(
        previous_producer_id=1, next_producer_id=2, next_producer_epoch=3, client_version=2, timeout_ms=2**31 - 1
    )
    assert read_transaction_value("txn", transaction_value(transaction)) == transaction


def test_partitions_are_stored_in_one_order() -> None:
    one = ONGOING._replace(partitions=frozenset(places("b-1", "a-2", "a-0")))
    other = ONGOING._replace(partitions=frozenset(places("a-0", "a-2", "b-1")))
    assert transaction_value(one) == transaction_value(other)


def test_the_last_value_of_a_key_holds_the_whole_transaction() -> None:
    """Compaction keeps only the last record of a key, so no other may be needed."""
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, "t-0")
    world.end(producer, commit=True, version=NEW)
    state = dict(world.shard.transactions)
    world.log = world.log[-1:]
    world.fail_over()
    assert world.shard.transactions == state
    assert len(world.markers) == 1


def test_a_tombstone_forgets_the_markers_of_a_transaction() -> None:
    world = TransactionWorld()
    prepared = ONGOING._replace(state=S.PREPARE_COMMIT)
    world.shard.replay(0, transaction_key("txn"), transaction_value(prepared, 0), AT)
    assert world.shard.unwritten_markers("txn") == set(places("t-0", "t-1"))
    world.shard.replay(1, transaction_key("txn"), None, AT)
    assert world.shard.unwritten_markers("txn") == set()
