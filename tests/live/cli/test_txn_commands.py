"""`ottla txn` against a running broker: what it shows, ends and rejects."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla import Broker
from tests.support.command_line import Run
from tests.support.wire.raw import RawConnection, Side
from tests.support.wire.raw_transactions import RawTransactions

Story = Callable[..., RawTransactions]


@pytest.fixture(scope="module")
def txn_broker() -> Iterator[Any]:
    settings = {
        "transaction.two.phase.commit.enable": "true",
        # So that a test can leave a transaction hanging, as brokers before KIP-890 did.
        "transaction.partition.verification.enable": "false",
    }
    with Broker.embedded(settings=settings) as running:
        yield running


@pytest.fixture
def bootstrap(txn_broker: Any) -> Any:
    return txn_broker.bootstrap


@pytest.fixture
def side(txn_broker: Any, request: pytest.FixtureRequest) -> Iterator[Side]:
    """A topic of its own for each test."""
    topic = request.node.name.replace("[", "-").replace("]", "")[:100]
    side = Side("ottla", txn_broker.bootstrap, topic)
    side.create(topic, 2)
    yield side
    side.close()


@pytest.fixture
def begun(side: Side) -> Iterator[Story]:
    """A producer with an open transaction of one record."""
    opened: list[RawConnection] = []

    def begin(name: str, **options: Any) -> RawTransactions:
        opened.append(RawConnection(side.bootstrap))
        transactions = RawTransactions(opened[-1], name)
        transactions.start(6 if options else 4, **options)
        assert isinstance(transactions.produce(side.topic, b"v", version=12), int)
        return transactions

    yield begin
    for connection in opened:
        connection.close()


def test_the_list_can_be_filtered(run: Run, begun: Story) -> None:
    one = begun("narrow-1")
    one.end(True, 5)
    assert one.state() == "CompleteCommit"
    two = RawTransactions(begun("narrow-2-unused").connection, "narrow-2")
    two.start()
    everything = {row["transactional_id"]: row["state"] for row in run("txn", "list", "--json").json}
    assert everything["narrow-1"] == "CompleteCommit"
    assert everything["narrow-2"] == "Empty"
    found = run("txn", "list", "--pattern", "narrow-[12]", "--state", "empty", "--json").json
    assert [row["transactional_id"] for row in found] == ["narrow-2"]
    assert run("txn", "list", "--longer-than", "3600", "--json").json == []
    assert "narrow-1" in run("txn", "list").out
    refused = run("txn", "list", "--state", "sleeping")
    assert refused.status == 2
    assert "Ongoing" in refused.err
    assert run("txn", "list", "--pattern", "(").status == 1


def test_describe_shows_state_timeout_and_partitions(run: Run, side: Side, begun: Story) -> None:
    begun("described")
    (found,) = run("txn", "describe", "described", "--json").json
    assert (found["state"], found["partitions"], found["timeout_ms"]) == ("Ongoing", [f"{side.topic}-0"], 60_000)
    shown = run("txn", "describe", "described").out
    assert "Ongoing" in shown
    assert f"{side.topic}-0" in shown
    assert "ago" in shown
    missing = run("txn", "describe", "describe")
    assert missing.status == 1
    assert "Did you mean described?" in missing.err


def test_an_open_transaction_is_aborted_by_its_id(run: Run, side: Side, begun: Story) -> None:
    transactions = begun("doomed")
    assert run("txn", "abort", "doomed").out == "aborted the transaction of doomed in 1 partition\n"
    assert transactions.state() == "CompleteAbort"
    assert transactions.produce(side.topic, version=12, sequence=1) == "INVALID_PRODUCER_EPOCH"
    assert transactions.end(True, 5) == "INVALID_TXN_STATE"
    again = run("txn", "abort", "doomed")
    assert again.status == 1
    assert "no open transaction" in again.err
    assert run("txn", "abort").status == 2
    assert run("txn", "abort", "doomed", "--topic", "t").status == 2


def test_a_transaction_without_two_phase_commit_cannot_be_committed_by_the_tool(run: Run, begun: Story) -> None:
    """KIP-939."""
    plain = begun("plain")
    ids = ["--producer-id", str(plain.producer_id), "--epoch", str(plain.producer_epoch)]
    refused = run("txn", "commit", "plain", *ids)
    assert refused.status == 1
    assert "does not use two-phase commit" in refused.err
    assert plain.describe()[0] == "Ongoing"


def test_a_prepared_transaction_is_committed_with_its_producer_id_and_epoch(run: Run, side: Side, begun: Story) -> None:
    """KIP-939: the external coordinator decided to commit, the producer is gone."""
    prepared = begun("prepared", enable2_pc=True)
    ids = ["--producer-id", str(prepared.producer_id), "--epoch"]
    wrong = run("txn", "commit", "prepared", *ids, str(prepared.producer_epoch + 1))
    assert wrong.status == 1
    assert prepared.describe()[0] == "Ongoing"
    assert "an external coordinator decides" in run("txn", "describe", "prepared").out
    done = run("txn", "commit", "prepared", *ids, str(prepared.producer_epoch))
    assert done.status == 0
    assert prepared.state() == "CompleteCommit"
    assert prepared.until(lambda: prepared.stable_offset(side.topic), 2) == 2


def test_the_timeline_has_every_step(run: Run, side: Side, begun: Story) -> None:
    transactions = begun("lived")
    transactions.produce(side.topic, b"v", version=12, partition=1)
    transactions.end(True, 5)
    transactions.state()
    transactions.produce(side.topic, b"v", version=12)
    transactions.end(False, 5)
    assert transactions.state() == "CompleteAbort"
    steps = run("txn", "timeline", "lived", "--json").json
    assert [(step["state"], step["what"]) for step in steps] == [
        ("Empty", "first seen"),
        ("Ongoing", "begun"),
        ("Ongoing", "partitions added"),
        ("PrepareCommit", "commit decided"),
        ("CompleteCommit", "completed"),
        ("Ongoing", "begun"),
        ("PrepareAbort", "abort decided"),
        ("CompleteAbort", "completed"),
    ]
    assert steps[2]["partitions"] == [f"{side.topic}-1"]
    assert steps[3]["partitions"] == [f"{side.topic}-0", f"{side.topic}-1"]
    assert steps[0]["gap_ms"] is None
    assert all(step["gap_ms"] >= 0 for step in steps[1:])
    assert [step["producer_epoch"] for step in steps] == [0, 0, 0, 1, 1, 1, 2, 2]
    shown = run("txn", "timeline", "lived", "--last", "2").out
    assert "6 earlier steps" in shown
    assert "completed" in shown
    assert "begun" not in shown
    unknown = run("txn", "timeline", "live")
    assert unknown.status == 1


def test_topic_describe_names_the_transaction_that_blocks_readers(run: Run, side: Side, begun: Story) -> None:
    begun("the-holder")
    shown = run("topic", "describe", side.topic).out
    assert "read_committed consumers stop at offset 0" in shown
    assert "the-holder" in shown
    partition = run("topic", "describe", side.topic, "--json").json[0]["partitions"][0]
    assert partition["last_stable_offset"] == 0
    assert partition["open_transactions"][0]["transactional_id"] == "the-holder"


def test_a_transaction_known_to_its_coordinator_is_not_hanging(run: Run, side: Side, begun: Story) -> None:
    begun("healthy")
    assert run("txn", "find-hanging", side.topic).status == 0
    refused = run("txn", "abort", "--topic", side.topic, "--partition", "0", "--start-offset", "0")
    assert refused.status == 1
    assert "is not hanging" in refused.err


def test_a_hanging_transaction_is_found_and_aborted(run: Run, side: Side) -> None:
    """A batch unknown to its coordinator: without KIP-890's verification it blocks readers forever."""
    with RawConnection(side.bootstrap) as connection:
        transactions = RawTransactions(connection, "hanging")
        transactions.start()
        assert transactions.produce(side.topic, b"v", version=11) == 0
        assert transactions.stable_offset(side.topic) == 0
        found = run("txn", "find-hanging", side.topic)
        assert found.status == 1
        assert f"{side.topic}-0" in found.out
        assert "Empty" in found.out
        (hanging,) = run("txn", "find-hanging", "--json").json
        assert (hanging["topic"], hanging["start_offset"], hanging["transactional_id"]) == (side.topic, 0, "hanging")
        place = ["--topic", side.topic, "--partition", "0", "--start-offset"]
        wrong = run("txn", "abort", *place, "7")
        assert wrong.status == 1
        assert "open transactions start at 0" in wrong.err
        assert run("txn", "abort", *place, "0", "--yes").status == 0
        assert transactions.stable_offset(side.topic) == 2
        assert run("txn", "find-hanging", side.topic).status == 0


def test_consume_has_a_formatter_for_transactions(run: Run, begun: Story) -> None:
    begun("formatted").end(True, 5)
    shown = run("consume", "__transaction_state", "--formatter", "transactions", "-e").out
    assert "transactionalId=formatted" in shown
