"""The picture of an anomaly is well-formed, complete and small."""

from xml.etree import ElementTree

import pytest

from ottla.verify.anomalies import Anomaly, Kind
from ottla.verify.checks.checker import check
from ottla.verify.history import OK, POLL, SEND, UNKNOWN, Fault, History, Operation, Sent
from ottla.verify.timeline import draw
from tests.support.histories import final_read

SECOND = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


def lossy(others: int = 0) -> History:
    """An acknowledged record is missing at the end; a broker was killed in between."""
    sent = Operation("append-sender-0", SEND, [Sent("t<&-0", 1, 0)], [], OK, SECOND, SECOND + 10_000)
    noise = [
        Operation(f"append-reader-{n % 7}", POLL, [], [], (OK, UNKNOWN)[n % 2], SECOND + n, SECOND + n + 3_000)
        for n in range(others)
    ]
    final = final_read({"t<&-0": [(1, 2)]})
    final.started_us, final.ended_us = 90 * SECOND, 91 * SECOND
    return History([sent, *noise, final], [Fault("kill", (2,), 5 * SECOND, 9 * SECOND, "broker 2 is killed")])


def picture(history: History, anomaly: Anomaly | None = None) -> tuple[str, list[str], list[str]]:
    """(the SVG, its visible texts, its titles)."""
    text = draw(history, anomaly or check(history)[0])
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    texts = ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]
    return text, texts, ["".join(each.itertext()) for each in root.iter(f"{SVG}title")]


def test_a_picture_shows_the_anomaly_its_operations_and_the_fault_in_between() -> None:
    _, texts, titles = picture(lossy())
    assert texts[0] == "lost write"
    assert {"append-sender-0", "final", "broker 2", "kill"} <= set(texts)
    assert any("sent 1 to t<&-0: acknowledged at offset 0" in text for text in texts)
    assert "broker 2 is killed" in titles


def test_a_picture_of_a_busy_moment_stays_small() -> None:
    text, _, _ = picture(lossy(others=50_000))
    assert len(text) < 100_000


def test_a_picture_refers_to_nothing_outside_of_it() -> None:
    text, _, _ = picture(lossy())
    assert text.count("http") == 1  # the name of the format
    assert "href" not in text
    assert "<script" not in text


@pytest.mark.parametrize("faults", [[], [Fault("pause", (0,), 0)]])
def test_an_anomaly_without_operations_has_a_picture_too(faults: list[Fault]) -> None:
    history = History([], faults)
    _, texts, _ = picture(history, Anomaly(Kind.NO_PROGRESS, "the group hangs"))
    assert "the group hangs" in texts


def test_operations_that_never_ended_are_drawn() -> None:
    operation = Operation("append-sender-0", SEND, started_us=5, outcome=UNKNOWN)
    history = History([operation, Operation("x", SEND, outcome=OK, started_us=99 * SECOND, ended_us=99 * SECOND)])
    (stuck,) = check(history)
    _, texts, _ = picture(history, stuck)
    assert "append-sender-0" in texts
