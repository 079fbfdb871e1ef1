"""Every message in every version: round trips, and the same bytes as a simple reference encoder."""

import re
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.broker.dispatch import SERVED
from ottla.protocol.api import API, ApiKey
from ottla.protocol.messages import group_records, transaction_records
from ottla.protocol.messages.unserved import share_records
from ottla.protocol.schema import Message
from tests.support.wire.messages import every_message, full, reference_encode, structs

MESSAGES = every_message()
each_message = pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)


def check(message: Message, version: int) -> None:
    """A message survives encoding and decoding, and its bytes equal those of the reference encoder."""
    cls = type(message)
    encoded = message.encode(version)
    assert encoded == reference_encode(message, version)
    assert cls.read(encoded, version) == (message, len(encoded))
    assert cls.read(memoryview(b"xx" + encoded + b"yy"), version, 2) == (message, len(encoded) + 2)


APIS = [api for api in API.values() if api.package is not None]


def test_every_api_with_a_table_finds_its_messages() -> None:
    names = {cls.__name__ for cls in MESSAGES}
    assert (len(API), len(APIS)) == (91, 68)
    for api in APIS:
        assert {api.request.__name__, api.response.__name__} == {f"{api.name}Request", f"{api.name}Response"} <= names


def test_an_api_without_a_table_is_a_lookup_error() -> None:
    vote = API[ApiKey.VOTE]
    assert (vote.name, vote.versions) == ("Vote", range(0, 3))
    with pytest.raises(LookupError, match="no message table for Vote"):
        _ = vote.request


def test_no_served_api_is_among_the_unserved_tables() -> None:
    assert [API[key].name for key in SERVED if API[key].package != "messages"] == []


@each_message
def test_the_fullest_message_survives_every_version(cls: type[Message]) -> None:
    for version in cls.versions:
        check(full(cls, version), version)


@each_message
def test_defaults_survive_every_version(cls: type[Message]) -> None:
    for version in cls.versions:
        assert cls.decode(cls().encode(version), version) == cls()


@each_message
def test_any_message_survives(cls: type[Message]) -> None:
    versions = list(cls.versions)
    # Recent versions differ most from each other; the shrunk failure is the oldest version that fails.
    pairs: st.SearchStrategy[tuple[int, Any]] = st.sampled_from(versions).flatmap(
        lambda version: st.tuples(st.just(version), structs(cls, version))
    )

    @settings(
        max_examples=3 + len(versions), deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(pairs)
    def survives(pair: tuple[int, Any]) -> None:
        version, message = pair
        check(message, version)

    survives()


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_the_table_of_apis_agrees_with_the_tables_of_messages(api: Any) -> None:
    for cls in (api.request, api.response):
        assert (cls.api_key, cls.versions, cls.flexible_since) == (api.key, api.versions, api.flexible_since)
    assert [api.is_flexible(v) for v in api.versions] == [api.request.is_flexible(v) for v in api.versions]


@pytest.mark.parametrize("module", [group_records, share_records], ids=lambda module: module.__name__)
def test_stored_records_are_found_by_the_type_of_their_key(module: Any) -> None:
    assert module.KEYS.keys() == module.VALUES.keys()
    for kind, key in module.KEYS.items():
        assert key.api_key == module.VALUES[kind].api_key == kind
        assert key.flexible_since is None, "keys are never flexible"


def test_transaction_records_have_one_type() -> None:
    assert transaction_records.TransactionLogKey.api_key == transaction_records.TransactionLogValue.api_key == 0


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_the_docstring_of_a_table_says_what_each_version_adds(api: Any) -> None:
    doc = sys.modules[api.request.__module__].__doc__ or ""
    assert doc.startswith(f"{api.name} (API {api.key}): ")
    assert [int(number) for number in re.findall(r"^v(\d+) +\S", doc, re.MULTILINE)] == list(api.versions)
