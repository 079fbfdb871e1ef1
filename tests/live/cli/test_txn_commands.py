"""`ottla txn` as a person uses it, against a running broker: what it shows, ends and refuses."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from tests.support.wire.raw import RawConnection, Side
from tests.support.wire.raw_transactions import RawTransactions

from ottla import Broker
from ottla.cli.main import main
from ottla.cli.consume.transaction_formatter import transaction_json, transaction_text
from ottla.client.admin.transaction_model import StoredTransaction, tell
from ottla.client.core.model import ConsumerRecord
from ottla.protocol.primitives import ProtocolError
from ottla.types import TopicPartition


class Ran(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]
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
def run(txn_broker: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("OTTLA_BOOTSTRAP", txn_broker.bootstrap)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> Ran:
        capsys.readouterr()
        status = main(list(words))
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run


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


def test_a_list_can_be_narrowed(run: Run, begun: Story) -> None:
    one = begun("narrow-1")
    one.end(True, 5)
    assert one.state() == "CompleteCommit"
    two = RawTransactions(begun("narrow-2-unused").connection, "narrow-2")
    two.start()
    everything = {row["transactional_id"]: row["state"] for row in run("txn", "list", "--json").json}
    assert everything["narrow-1"] == "CompleteCommit" and everything["narrow-2"] == "Empty"
    found = run("txn", "list", "--pattern", "narrow-[12]", "--state", "empty", "--json").json
    assert [row["transactional_id"] for row in found] == ["narrow-2"]
    assert run("txn", "list", "--longer-than", "3600", "--json").json == []
    assert "narrow-1" in run("txn", "list").out
    refused = run("txn", "list", "--state", "sleeping")
    assert refused.status == 2 and "Ongoing" in refused.err
    assert run("txn", "list", "--pattern", "(").status == 1


def test_a_description_says_what_it_waits_for(run: Run, side: Side, begun: Story) -> None:
    begun("described")
    (found,) = run("txn", "describe", "described", "--json").json
    assert (found["state"], found["partitions"], found["timeout_ms"]) == ("Ongoing", [f"{side.topic}-0"], 60_000)
    shown = run("txn", "describe", "described").out
    assert "Ongoing" in shown and f"{side.topic}-0" in shown and "ago" in shown
    missing = run("txn", "describe", "describe")
    assert missing.status == 1 and "did you mean described?" in missing.err


def test_an_open_transaction_is_aborted_by_its_id(run: Run, side: Side, begun: Story) -> None:
    transactions = begun("doomed")
    assert run("txn", "abort", "doomed").out == "aborted the transaction of doomed in 1 partition\n"
    assert transactions.state() == "CompleteAbort"
    assert transactions.produce(side.topic, version=12, sequence=1) == "INVALID_PRODUCER_EPOCH"
    assert transactions.end(True, 5) == "INVALID_TXN_STATE"
    again = run("txn", "abort", "doomed")
    assert again.status == 1 and "no open transaction" in again.err
    assert run("txn", "abort").status == 2
    assert run("txn", "abort", "doomed", "--topic", "t").status == 2


def test_only_a_prepared_transaction_is_committed_from_outside(run: Run, begun: Story) -> None:
    """KIP-939."""
    plain = begun("plain")
    ids = ["--producer-id", str(plain.producer_id), "--epoch", str(plain.producer_epoch)]
    refused = run("txn", "commit", "plain", *ids)
    assert refused.status == 1 and "no two-phase commit" in refused.err
    assert plain.describe()[0] == "Ongoing"


def test_a_prepared_transaction_is_committed_by_whoever_knows_its_epoch(run: Run, side: Side, begun: Story) -> None:
    """KIP-939: the outside coordinator said yes, the producer is gone."""
    prepared = begun("prepared", enable2_pc=True)
    ids = ["--producer-id", str(prepared.producer_id), "--epoch"]
    wrong = run("txn", "commit", "prepared", *ids, str(prepared.producer_epoch + 1))
    assert wrong.status == 1 and prepared.describe()[0] == "Ongoing"
    assert "an outside coordinator decides" in run("txn", "describe", "prepared").out
    done = run("txn", "commit", "prepared", *ids, str(prepared.producer_epoch))
    assert done.status == 0 and prepared.state() == "CompleteCommit"
    assert prepared.until(lambda: prepared.stable_offset(side.topic), 2) == 2


def test_a_timeline_has_every_step_with_its_gap(run: Run, side: Side, begun: Story) -> None:
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
    assert steps[0]["gap_ms"] is None and all(step["gap_ms"] >= 0 for step in steps[1:])
    assert [step["producer_epoch"] for step in steps] == [0, 0, 0, 1, 1, 1, 2, 2]
    shown = run("txn", "timeline", "lived", "--last", "2").out
    assert "6 earlier steps" in shown and "completed" in shown and "begun" not in shown
    unknown = run("txn", "timeline", "live")
    assert unknown.status == 1


def test_whoever_holds_readers_back_is_named(run: Run, side: Side, begun: Story) -> None:
    begun("the-holder")
    shown = run("topic", "describe", side.topic).out
    assert "readers of committed records stop at 0" in shown and "the-holder" in shown
    partition = run("topic", "describe", side.topic, "--json").json[0]["partitions"][0]
    assert partition["last_stable_offset"] == 0
    assert partition["open_transactions"][0]["transactional_id"] == "the-holder"


def test_nothing_hangs_while_a_coordinator_knows_it(run: Run, side: Side, begun: Story) -> None:
    begun("healthy")
    assert run("txn", "find-hanging", side.topic).status == 0
    refused = run("txn", "abort", "--topic", side.topic, "--partition", "0", "--start-offset", "0")
    assert refused.status == 1 and "does not hang" in refused.err


def test_a_hanging_transaction_is_found_and_ended(run: Run, side: Side) -> None:
    """A batch that its coordinator does not know of: without verification it holds readers back for ever."""
    with RawConnection(side.bootstrap) as connection:
        transactions = RawTransactions(connection, "hanging")
        transactions.start()
        assert transactions.produce(side.topic, b"v", version=11) == 0
        assert transactions.stable_offset(side.topic) == 0
        found = run("txn", "find-hanging", side.topic)
        assert found.status == 1 and f"{side.topic}-0" in found.out and "Empty" in found.out
        (hanging,) = run("txn", "find-hanging", "--json").json
        assert (hanging["topic"], hanging["start_offset"], hanging["transactional_id"]) == (side.topic, 0, "hanging")
        place = ["--topic", side.topic, "--partition", "0", "--start-offset"]
        wrong = run("txn", "abort", *place, "7")
        assert wrong.status == 1 and "there are some at 0" in wrong.err
        assert run("txn", "abort", *place, "0", "--yes").status == 0
        assert transactions.stable_offset(side.topic) == 2
        assert run("txn", "find-hanging", side.topic).status == 0


def stored(state: str, **more: Any) -> StoredTransaction:
    fields = {
        "transactional_id": "x",
        "state": state,
        "producer_id": 7,
        "producer_epoch": 0,
        "timeout_ms": 1_000,
        "partitions": (),
        "start_ms": 0,
        "update_ms": 0,
        "previous_producer_id": -1,
        "next_producer_id": -1,
        "next_producer_epoch": -1,
        "client_version": 0,
    }
    return StoredTransaction(**fields | more)  # type: ignore[arg-type]


def test_a_timeline_tells_why() -> None:
    where = (TopicPartition("t", 0),)
    life = [
        (0, stored("Ongoing", partitions=where)),
        (0, stored("Ongoing", partitions=where, next_producer_epoch=1, update_ms=10)),
        (0, stored("PrepareAbort", partitions=where, producer_epoch=1, update_ms=5_000)),
        (0, stored("CompleteAbort", producer_epoch=1, update_ms=5_001)),
        (0, stored("Ongoing", producer_epoch=1, update_ms=6_000, start_ms=6_000, partitions=where)),
        (0, stored("PrepareAbort", producer_epoch=2, update_ms=6_010, partitions=where)),
        (0, stored("CompleteAbort", producer_id=8, update_ms=6_020)),
        (9_000, None),
    ]
    assert [moment.what for moment in tell(life)] == [
        "begun",
        "taken over by epoch 1, kept as prepared",
        "abort decided after its timeout",
        "completed",
        "begun",
        "abort decided, its producer fenced",
        "completed, goes on as producer 8",
        "forgotten: nobody used it any more",
    ]


def record(key: bytes | None, value: bytes | None) -> ConsumerRecord:
    return ConsumerRecord("__transaction_state", 6, 3, 1_700_000_000_000, key, value, ())


KEY = bytes.fromhex("0000000374786e")
VALUE = bytes.fromhex(
    "000100000000000003e800030000ea6001020274030000000000000001000000018bcfe569f40000018bcfe5680002000800000000000003e802020002"
)


def test_stored_transactions_are_shown_in_words() -> None:
    assert transaction_text(record(KEY, VALUE)) == (
        "txn::TransactionMetadata(transactionalId=txn,producerId=1000,producerEpoch=3,txnTimeoutMs=60000,state=Ongoing,"
        "topicPartitions=[t-0,t-1],txnStartTimestamp=1700000000000,txnLastUpdateTimestamp=1700000000500,"
        "clientTransactionVersion=2,previousProducerId=1000)"
    )
    assert transaction_text(record(KEY, None)) == "txn::null"
    assert transaction_text(record(b"\0\7future", b"")) is None
    shown = transaction_json(record(KEY, VALUE))
    assert shown is not None and shown["transaction"]["partitions"] == ["t-0", "t-1"]
    for key, value in ((None, VALUE), (KEY, VALUE[:20]), (KEY[:4], VALUE)):
        with pytest.raises(ProtocolError):
            transaction_text(record(key, value))


def test_the_formatter_is_there_for_consume(run: Run, begun: Story) -> None:
    begun("formatted").end(True, 5)
    shown = run("consume", "__transaction_state", "--formatter", "transactions", "-e").out
    assert "transactionalId=formatted" in shown
