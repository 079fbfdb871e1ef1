"""Two faces of one client: the same methods with the same arguments, async and blocking."""

import inspect
import multiprocessing
import threading
from typing import Any

import pytest
from tests.support.waiting import PATIENCE_S, eventually

import ottla
from ottla import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer
from ottla.client.consumer.consumer import WakeupError
from ottla.errors import OttlaError

PAIRS = [(AsyncAdmin, Admin), (AsyncProducer, Producer), (AsyncConsumer, Consumer)]
SPECIAL = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}


def methods(face: type) -> dict[str, Any]:
    found = {}
    for name, member in inspect.getmembers(face, inspect.isroutine):
        if not name.startswith("_") or name in SPECIAL or name in SPECIAL.values():
            found[SPECIAL.get(name, name)] = member
    return found


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_both_faces_have_the_same_methods(asynchronous: type, blocking: type) -> None:
    assert methods(asynchronous).keys() == methods(blocking).keys()


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_both_faces_take_the_same_arguments(asynchronous: type, blocking: type) -> None:
    ours, theirs = methods(asynchronous), methods(blocking)
    for name in ours.keys() - SPECIAL.values():
        parameters = [
            [(p.name, p.kind, p.default) for p in inspect.signature(face[name]).parameters.values()]
            for face in (ours, theirs)
        ]
        assert parameters[0] == parameters[1], name


@pytest.mark.parametrize("face", [face for pair in PAIRS for face in pair])
def test_every_client_shows_how_it_is_used(face: type) -> None:
    assert ">>>" in (face.__doc__ or "")


@pytest.mark.parametrize("name", [name for name in ottla.__all__ if isinstance(getattr(ottla, name), type)])
def test_help_has_a_word_on_every_method_of_every_public_class(name: str) -> None:
    def says_nothing(member: Any) -> bool:
        return (inspect.isroutine(member) or isinstance(member, property)) and not inspect.getdoc(member)

    face = getattr(ottla, name)
    members = {each: inspect.getattr_static(face, each) for each in dir(face) if not each.startswith("_")}
    assert face.__doc__
    assert [each for each, member in members.items() if says_nothing(getattr(member, "__func__", member))] == []


def test_the_blocking_face_is_told_by_its_async_twin_without_await() -> None:
    assert Consumer.assign.__doc__ is not None and AsyncConsumer.assign.__doc__ is not None
    assert ">>> await consumer.assign(" in AsyncConsumer.assign.__doc__
    assert ">>> consumer.assign(" in Consumer.assign.__doc__
    for _, face in PAIRS:
        assert all("await " not in (method.__doc__ or "") for method in methods(face).values())


def test_a_consumer_refuses_two_threads_at_once(broker: Any, topic: str) -> None:
    """MISSION B9."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.position((topic, 0))
        ended: list[Exception] = []

        def poll() -> None:
            try:
                consumer.poll(300_000)
            except OttlaError as error:
                ended.append(error)

        thread = threading.Thread(target=poll)
        thread.start()
        eventually(lambda: consumer._owner == thread.ident)  # for good: its first look for records is over
        with pytest.raises(OttlaError, match="not safe for use by several threads"):
            consumer.poll(0)
        consumer.wakeup()  # the one call that another thread may make
        thread.join(PATIENCE_S)
        assert not thread.is_alive() and isinstance(ended[0], WakeupError)


def test_a_client_made_before_a_fork_is_refused_after_it_and_a_new_one_works(broker: Any, topic: str) -> None:
    """STYLE §5: Spark forks its workers."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send_and_wait(topic, "parent")
            context = multiprocessing.get_context("fork")
            results = context.Queue()
            child = context.Process(target=_in_child, args=(producer, broker.bootstrap, topic, results))
            child.start()
            assert results.get(timeout=PATIENCE_S) == ("this client was made in another process", 1)
            child.join(PATIENCE_S)
            assert producer.send_and_wait(topic, "parent again").offset == 2


def _in_child(inherited: Producer, bootstrap: str, topic: str, results: Any) -> None:
    try:
        inherited.send(topic, "child")
        refusal = ""
    except OttlaError as error:
        refusal = error.message
    with Producer(bootstrap_servers=bootstrap) as producer:
        results.put((refusal, producer.send_and_wait(topic, "child").offset))


def test_a_blocking_call_inside_a_callback_is_refused_not_stuck(broker: Any, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        caught: list[str] = []
        done = threading.Event()

        def callback(delivery: Any) -> None:
            try:
                producer.flush()
            except OttlaError as error:
                caught.append(error.message)
            done.set()

        producer.send(topic, "v").add_done_callback(callback)
        assert done.wait(PATIENCE_S)
        assert caught == ["a blocking call inside a callback would wait for itself"]
