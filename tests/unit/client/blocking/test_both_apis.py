"""The blocking API has the methods, arguments and documentation of the async one."""

import inspect
from typing import Any

import pytest

import ottla
from ottla import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncDeserializingConsumer,
    AsyncProducer,
    Consumer,
    DeserializingConsumer,
    Producer,
)

PAIRS = [
    (AsyncAdmin, Admin),
    (AsyncProducer, Producer),
    (AsyncConsumer, Consumer),
    (AsyncDeserializingConsumer, DeserializingConsumer),
]
SPECIAL = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}


def methods(client: type) -> dict[str, Any]:
    found = {}
    for name, member in inspect.getmembers(client, inspect.isroutine):
        if not name.startswith("_") or name in SPECIAL or name in SPECIAL.values():
            found[SPECIAL.get(name, name)] = member
    return found


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_both_apis_have_the_same_methods(asynchronous: type, blocking: type) -> None:
    assert methods(asynchronous).keys() == methods(blocking).keys()


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_both_apis_take_the_same_arguments(asynchronous: type, blocking: type) -> None:
    ours, theirs = methods(asynchronous), methods(blocking)
    for name in ours.keys() - SPECIAL.values():
        parameters = [
            [(p.name, p.kind, p.default) for p in inspect.signature(api[name]).parameters.values()]
            for api in (ours, theirs)
        ]
        assert parameters[0] == parameters[1], name


@pytest.mark.parametrize("client", [client for pair in PAIRS for client in pair])
def test_every_client_has_an_example(client: type) -> None:
    assert ">>>" in (client.__doc__ or "")


@pytest.mark.parametrize("name", [name for name in ottla.__all__ if isinstance(getattr(ottla, name), type)])
def test_every_method_of_every_public_class_is_documented(name: str) -> None:
    def is_undocumented(member: Any) -> bool:
        return (inspect.isroutine(member) or isinstance(member, property)) and not inspect.getdoc(member)

    public = getattr(ottla, name)
    members = {each: inspect.getattr_static(public, each) for each in dir(public) if not each.startswith("_")}
    assert public.__doc__
    assert [each for each, member in members.items() if is_undocumented(getattr(member, "__func__", member))] == []


def test_docstrings_of_the_blocking_api_do_not_say_await() -> None:
    assert Consumer.assign.__doc__ is not None
    assert AsyncConsumer.assign.__doc__ is not None
    assert ">>> await consumer.assign(" in AsyncConsumer.assign.__doc__
    assert ">>> consumer.assign(" in Consumer.assign.__doc__
    for _, blocking in PAIRS:
        assert all("await " not in (method.__doc__ or "") for method in methods(blocking).values())


@pytest.mark.parametrize("client", [Admin, Producer])
def test_the_end_of_a_with_block_calls_close_of_a_subclass(client: type[Any]) -> None:
    closed = []

    class Extended(client):  # type: ignore[misc]
        def close(self) -> None:
            closed.append(self)
            super().close()

    with Extended() as made:
        assert closed == []
    assert closed == [made]
