"""Requests of clients with no, some and all permissions: Ottla and Apache Kafka's StandardAuthorizer answer alike."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Broker
from ottla.protocol.api import API
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from tests.support.processes.oracle import RealKafka, oracle_available
from tests.support.wire.acl_requests import MAKERS, requests_of
from tests.support.wire.acl_world import SETTINGS, Secured, answers_to, prepare, questions_about
from tests.support.wire.raw import Side, differences

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[Secured]]:
    """Both brokers with an authorizer, and an administrator at 127.0.0.1."""
    reason = oracle_available()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(Broker.embedded(settings={**SETTINGS, "group.initial.rebalance.delay.ms": 0}))
        theirs = stack.enter_context(RealKafka(SETTINGS))
        both = []
        for name, bootstrap in (("ottla", ours.bootstrap), ("kafka", theirs.bootstrap)):
            side = stack.enter_context(contextlib.closing(Side(name, bootstrap, "seen")))
            both.append(Secured(side, prepare(side)))
        yield both


def test_every_api_is_answered_the_same_with_no_some_and_all_permissions(brokers: list[Secured]) -> None:
    served = brokers[1].side.connection.ask(ApiVersionsRequest(), 0).api_keys
    newest = {each.api_key: each.max_version for each in served}
    ahead = {key.name for key in MAKERS if API[key].versions[-1] > newest[key]}
    assert ahead == {"API_VERSIONS", "DELETE_GROUPS", "INIT_PRODUCER_ID", "TXN_OFFSET_COMMIT"}, (
        "Kafka does not offer these versions"
    )
    outcomes: list[dict[str, Any]] = []
    for side, names in brokers:
        cases = [case for case in requests_of(names) if case.version <= newest[case.request.api_key]]
        outcomes.append(answers_to(side, questions_about(cases)))
    ours, theirs = outcomes
    # Apache Kafka adds an entry for a user without a name when it refuses the whole request.
    theirs["DescribeUserScramCredentials v0 with []"]["results"] = []
    found = [f"{question}{line}" for question in ours for line in differences(ours[question], theirs[question])]
    assert not found, "\n".join(found)
