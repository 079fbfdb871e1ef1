"""Several brokers of one host: each has its own directory and ports, and the defaults keep records safe."""

import pytest

from ottla.broker.one_host import default_replication, settings_of_brokers
from ottla.errors import ConfigError


def of_all(name: str, values: dict[str, str], count: int = 3) -> list[str]:
    return [settings[name] for settings in settings_of_brokers({"log.dirs": "d", **values}, count)]


def test_brokers_are_numbered_and_share_the_metadata() -> None:
    assert of_all("node.id", {}) == ["0", "1", "2"]
    assert of_all("log.dirs", {"log.dirs": "/data/"}) == ["/data/broker-0", "/data/broker-1", "/data/broker-2"]
    assert of_all("ottla.metadata", {"log.dirs": "/data/"}) == ["/data/cluster/metadata.sqlite"] * 3
    assert of_all("ottla.metadata", {"ottla.metadata": "/elsewhere"}) == ["/elsewhere"] * 3


def test_the_older_name_of_the_data_directory_counts_too() -> None:
    (settings,) = settings_of_brokers({"log.dir": "/data"}, 1)
    assert settings["log.dirs"] == "/data/broker-0"
    assert "log.dir" not in settings


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("PLAINTEXT://127.0.0.1:9092", "PLAINTEXT://127.0.0.1:9094"),
        ("PLAINTEXT://[::1]:9092", "PLAINTEXT://[::1]:9094"),
        ("PLAINTEXT://:0", "PLAINTEXT://:0"),
        ("IN://a:1000,OUT://b:2000", "IN://a:1002,OUT://b:2002"),
    ],
)
def test_ports_are_counted_up_and_zero_stays_zero(given: str, expected: str) -> None:
    assert of_all("listeners", {"listeners": given})[2] == expected


def test_every_setting_with_a_port_is_counted_up() -> None:
    assert of_all("ottla.metrics.listen", {"ottla.metrics.listen": "127.0.0.1:9404"})[1] == "127.0.0.1:9405"
    advertised = {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://example.org:9092"}
    assert of_all("advertised.listeners", advertised)[2] == "PLAINTEXT://example.org:9094"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"listeners": "IN://a:1000,OUT://a:1001"}, "the same port 1001"),
        ({"listeners": "IN://a:1000", "ottla.metrics.listen": "a:1002"}, "ottla.metrics.listen of broker 0"),
        ({"listeners": "IN://a:99999999"}, "listeners of broker 0 has port 99999999; the highest is 65535"),
        ({"listeners": "IN://a:65534"}, "listeners of broker 2 has port 65536; the highest is 65535"),
    ],
)
def test_ports_that_meet_or_do_not_exist_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        of_all("listeners", values)
    assert caught.value.hint


def test_topics_survive_the_loss_of_a_broker_by_default() -> None:
    assert of_all("default.replication.factor", {}) == ["3"] * 3
    assert of_all("min.insync.replicas", {}) == ["2"] * 3
    assert of_all("default.replication.factor", {"default.replication.factor": "1"}) == ["1"] * 3
    assert default_replication(5)["offsets.topic.replication.factor"] == "3"


@pytest.mark.parametrize("brokers", [1, 2])
def test_with_fewer_than_three_brokers_a_write_needs_one(brokers: int) -> None:
    settings = default_replication(brokers)
    assert "min.insync.replicas" not in settings
    assert settings["transaction.state.log.min.isr"] == "1"
    assert settings["offsets.topic.replication.factor"] == str(brokers)
