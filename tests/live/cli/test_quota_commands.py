"""`ottla quota`, and the admin calls behind it, against a running broker."""

import functools
import json
from typing import Any

import pytest

from ottla import Admin, KafkaError, OttlaError
from ottla.client.core.model import ClientQuota
from tests.support.command_line import Run


@pytest.fixture
def quota(run: Run) -> Run:
    return functools.partial(run, "quota")


def test_quotas_are_set_listed_and_removed(quota: Run) -> None:
    status, out, _ = quota("set", "--user", "ann", "producer_byte_rate=10MB/s", "consumer_byte_rate=20MB/s")
    assert (status, out) == (0, "user ann: producer_byte_rate=10MB/s, consumer_byte_rate=20MB/s\n")
    assert quota("set", "--default-user", "--client-id", "reports", "request_percentage=10%")[0] == 0
    assert quota("set", "--ip", "203.0.113.9", "connection_creation_rate=20/s")[0] == 0
    table = quota("list")[1]
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert "ann consumer_byte_rate 20MB/s" in lines
    assert "<default> reports request_percentage 10%" in lines
    assert "203.0.113.9 connection_creation_rate 20/s" in lines
    (found,) = json.loads(quota("list", "--user", "ann", "--json")[1])
    assert found == {"entity": {"user": "ann"}, "quotas": {"consumer_byte_rate": 2e7, "producer_byte_rate": 1e7}}
    assert quota("remove", "--user", "ann", "producer_byte_rate")[:2] == (0, "user ann: removed producer_byte_rate\n")
    assert json.loads(quota("remove", "--user", "ann", "--json")[1])["removed"] == ["consumer_byte_rate"]
    assert quota("list", "--user", "ann")[:2] == (0, "no quotas\n")
    quota("remove", "--default-user", "--client-id", "reports")
    quota("remove", "--ip", "203.0.113.9")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["set", "producer_byte_rate=1"], "no user, client id or address"),
        (["set", "--user", "ann", "producer_byte_rate"], "QUOTA producer_byte_rate has no '='"),
        (["set", "--user", "ann", "speed=1"], "'speed' is not a quota of this entity"),
        (["set", "--ip", "1.2.3.4", "producer_byte_rate=1"], "'producer_byte_rate' is not a quota of this entity"),
        (["set", "--user", "ann", "--ip", "1.2.3.4", "producer_byte_rate=1"], "--ip cannot be combined"),
        (
            ["set", "--user", "ann", "--default-user", "producer_byte_rate=1"],
            "--user cannot be combined with --default-user",
        ),
        (["set", "--user", "", "producer_byte_rate=1"], "--user is empty"),
        (["set", "--ip", "nowhere", "connection_creation_rate=1"], "nowhere is not a valid IP address"),
        (["remove", "--user", "nobody"], "user nobody has no quotas"),
    ],
)
def test_a_mistake_is_one_line_with_a_hint(quota: Run, words: list[str], message: str) -> None:
    status, out, err = quota(*words)
    assert status != 0
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_the_admin_filters_by_name_default_and_any_name(broker: Any) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.alter_client_quotas({"user": "bob"}, {"producer_byte_rate": 5}, validate_only=True)
        assert admin.describe_client_quotas({"user": "bob"}) == []
        for entity in ({"user": "bob"}, {"user": "bob", "client-id": None}, {"user": "bob", "client-id": "x"}):
            admin.alter_client_quotas(entity, {"producer_byte_rate": 5})
        assert len(admin.describe_client_quotas({"user": "bob"})) == 3
        assert len(admin.describe_client_quotas({"user": "bob", "client-id": ...})) == 2
        quota = ClientQuota({"user": "bob", "client-id": None}, {"producer_byte_rate": 5.0})
        assert admin.describe_client_quotas({"user": "bob", "client-id": None}) == [quota]
        assert len(admin.describe_client_quotas({"user": "bob"}, strict=True)) == 1
        with pytest.raises(KafkaError, match="Quota producer_byte_rate must be greater than 0"):
            admin.alter_client_quotas({"user": "bob"}, {"producer_byte_rate": -5})
        with pytest.raises(OttlaError, match="there are no quotas for a 'group'"):
            admin.alter_client_quotas({"group": "g"}, {"producer_byte_rate": 5})
        with pytest.raises(OttlaError, match="a quota needs an entity"):
            admin.alter_client_quotas({}, {"producer_byte_rate": 5})
        for each in admin.describe_client_quotas({"user": "bob"}):
            admin.alter_client_quotas(each.entity, dict.fromkeys(each.quotas))
        assert admin.describe_client_quotas({"user": "bob"}) == []
