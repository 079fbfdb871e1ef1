"""`ottla quota`, and the admin calls behind it, against a running broker."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from ottla import Admin, KafkaError, OttlaError
from ottla.cli.main import main
from ottla.client.core.model import ClientQuota

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(broker: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("OTTLA_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["quota", *words])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_quotas_are_set_listed_and_removed(run: Run) -> None:
    status, out, _ = run("set", "--user", "ann", "producer_byte_rate=10MB/s", "consumer_byte_rate=20MB/s")
    assert (status, out) == (0, "user ann: producer_byte_rate=10MB/s, consumer_byte_rate=20MB/s\n")
    assert run("set", "--default-user", "--client-id", "reports", "request_percentage=10%")[0] == 0
    assert run("set", "--ip", "203.0.113.9", "connection_creation_rate=20/s")[0] == 0
    table = run("list")[1]
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert "ann consumer_byte_rate 20MB/s" in lines
    assert "<default> reports request_percentage 10%" in lines
    assert "203.0.113.9 connection_creation_rate 20/s" in lines
    (found,) = json.loads(run("list", "--user", "ann", "--json")[1])
    assert found == {"entity": {"user": "ann"}, "quotas": {"consumer_byte_rate": 2e7, "producer_byte_rate": 1e7}}
    assert run("remove", "--user", "ann", "producer_byte_rate")[:2] == (0, "user ann: removed producer_byte_rate\n")
    assert json.loads(run("remove", "--user", "ann", "--json")[1])["removed"] == ["consumer_byte_rate"]
    assert run("list", "--user", "ann")[:2] == (0, "no quotas\n")
    run("remove", "--default-user", "--client-id", "reports")
    run("remove", "--ip", "203.0.113.9")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["set", "producer_byte_rate=1"], "no user, client id or address"),
        (["set", "--user", "ann", "producer_byte_rate"], "QUOTA producer_byte_rate has no '='"),
        (["set", "--user", "ann", "speed=1"], "there is no quota 'speed' for this"),
        (["set", "--ip", "1.2.3.4", "producer_byte_rate=1"], "there is no quota 'producer_byte_rate' for this"),
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
def test_a_mistake_is_one_line_with_a_hint(run: Run, words: list[str], message: str) -> None:
    status, out, err = run(*words)
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
