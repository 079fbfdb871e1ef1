"""A new API takes a message table, a row in `protocol/api.py` and one handler file. These tests say what is missing."""

import ast
import inspect
import typing
from collections.abc import Awaitable
from pathlib import Path

import pytest

from ottla.broker import handlers
from ottla.broker.dispatch import SERVED, handler_for
from ottla.broker.services import Context
from ottla.protocol.api import API, ApiKey, snake_case

FILES = sorted(path for path in Path(handlers.__path__[0]).glob("*.py") if path.stem != "__init__")
APIS = {snake_case(api.name): key for key, api in API.items()}

CLIENT_ONLY = {ApiKey.CONSUMER_GROUP_DESCRIBE}
"""Message tables in `messages/` that our clients use with other brokers."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_handler_file_is_named_after_an_api(file: Path) -> None:
    assert file.stem in APIS, f"{file.name}: no row of protocol/api.py is called {file.stem}"
    assert APIS[file.stem] in SERVED


def test_an_api_whose_messages_are_not_marked_unserved_has_a_handler_file() -> None:
    with_table = {key for key, api in API.items() if api.package == "messages"}
    missing = [API[key].name for key in sorted(with_table - SERVED.keys() - CLIENT_ONLY)]
    assert not missing, f"write a file in broker/handlers/ for {missing}, or move the tables to messages/unserved/"


@pytest.mark.parametrize("key", sorted(SERVED), ids=lambda key: ApiKey(key).name)
def test_a_served_api_has_messages_in_each_version(key: int) -> None:
    api = SERVED[key]
    assert api.package == "messages", f"move {api.name} out of messages/unserved/"
    for message in (api.request, api.response):
        assert set(api.versions) <= set(message.versions), f"{message.__name__} has {message.versions}"


@pytest.mark.parametrize("key", sorted(SERVED), ids=lambda key: ApiKey(key).name)
def test_a_handler_takes_the_request_of_its_api_and_returns_its_response(key: int) -> None:
    handler = handler_for(key)
    assert list(inspect.signature(handler).parameters) == ["request", "context"]
    # Names that a handler imports for the type checker only.
    names = {"Awaitable": Awaitable, "Context": Context, **_messages(key)}
    hints = typing.get_type_hints(handler, {**vars(inspect.getmodule(handler)), **names})
    assert hints["request"] is SERVED[key].request
    assert SERVED[key].response in (hints["return"], *_members(hints["return"]))


def _messages(key: int) -> dict[str, type]:
    return {message.__name__: message for message in (SERVED[key].request, SERVED[key].response)}


def _members(hint: object) -> list[object]:
    """The types in a union or an awaitable."""
    found = list(typing.get_args(hint))
    return found + [member for each in found for member in _members(each)]


@pytest.mark.parametrize("key", sorted(SERVED), ids=lambda key: ApiKey(key).name)
def test_a_handler_file_opens_with_its_versions_and_what_each_adds(key: int) -> None:
    api = SERVED[key]
    path = Path(handlers.__path__[0]) / f"{snake_case(api.name)}.py"
    first, *rest = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()
    served = f"v{api.min_version}" + (f"-{api.max_version}" if api.max_version > api.min_version else "")
    assert first.startswith(f"{api.name} {served}: "), first
    noted = [int(line.split()[0][1:]) for line in rest if line[:1] == "v" and line[1:2].isdigit()]
    assert noted == sorted(set(noted))
    assert set(noted) <= set(api.versions)
    if api.flexible_since is not None and api.flexible_since > api.min_version:
        assert f"v{api.flexible_since} " in "\n".join(rest), "say that it is flexible from here on (KIP-482)"
