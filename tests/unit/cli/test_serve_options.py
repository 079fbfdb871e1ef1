"""What `ottla serve` understands on its command line, and how it says what it does not."""

from pathlib import Path

import pytest

from ottla.cli.serve.command import serve
from ottla.cli.serve.options import parse_options
from ottla.errors import OttlaError


def values(*arguments: str) -> dict[str, str]:
    return parse_options(arguments).values


def test_defaults_are_a_loopback_port_and_a_local_directory() -> None:
    assert values() == {"listeners": "PLAINTEXT://127.0.0.1:9092", "log.dirs": "ottla-data"}


def test_options_accept_a_space_or_an_equals_sign() -> None:
    assert values("--listen", "127.0.0.1:0", "--data", "/tmp/d") == values("--listen=127.0.0.1:0", "--data=/tmp/d")


@pytest.mark.parametrize(
    ("listen", "listener"),
    [
        ("127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
        (":9092", "PLAINTEXT://:9092"),
        ("[::1]:9092", "PLAINTEXT://[::1]:9092"),
        ("localhost:1", "PLAINTEXT://localhost:1"),
        ("INSIDE://a:1,OUTSIDE://b:2", "INSIDE://a:1,OUTSIDE://b:2"),
    ],
)
def test_listen_is_converted_to_kafkas_listener_format(listen: str, listener: str) -> None:
    assert values("--listen", listen)["listeners"] == listener


def test_options_override_set_and_set_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# mine\nnum.partitions=2\nlog.dirs=/from/file\nlisteners=PLAINTEXT://:1\nbroker.id=4\n")
    assert values("--config", str(file), "--set", "num.partitions=3", "--set", "log.dirs=/from/set") == {
        "num.partitions": "3",
        "log.dirs": "/from/set",
        "listeners": "PLAINTEXT://:1",
        "broker.id": "4",
    }
    assert values("--config", str(file), "--set=log.dirs=/from/set", "--data", "/d")["log.dirs"] == "/d"


def test_a_broker_of_a_cluster_has_an_id_and_a_metadata_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=4\n")
    given = values("--config", str(file), "--node-id", "2", "--metadata", "/tmp/c/metadata")
    assert given["node.id"] == "2"
    assert "broker.id" not in given
    assert given["ottla.metadata"] == "/tmp/c/metadata"


def test_a_value_may_contain_an_equals_sign() -> None:
    assert values("--set", "broker.rack=a=b")["broker.rack"] == "a=b"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listn", ":1"], "unknown option --listn"),
        (["extra"], "unknown option extra"),
        (["--data"], "--data needs a value"),
        (["--set", "num.partitions"], "--set num.partitions has no '='"),
        (["--set", "=3"], "--set =3 has no '='"),
        (["--data", "a", "--data", "b"], "option --data is repeated"),
        (["--listen", "nowhere"], "cannot listen on 'nowhere'"),
        (["--listen", "host:port"], "cannot listen on 'host:port'"),
        (["--listen", "host:70000"], "cannot listen on 'host:70000'"),
        (["--listen", "::1:9092"], "cannot listen on '::1:9092'"),
        (["--log-level", "loud"], "unknown log level loud"),
        (["--config", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
        (["--config", "/"], "cannot read /: Is a directory"),
        (["--brokers", "three"], "cannot run 'three' brokers"),
        (["--brokers", "0"], "cannot run '0' brokers"),
        (["--brokers", "101"], "cannot run '101' brokers"),
        (["--brokers", "3", "--node-id", "1"], "--brokers cannot be combined with a node id"),
        (["--brokers", "3", "--set", "broker.id=1"], "--brokers cannot be combined with a node id"),
        (["--brokers", "3", "--listen", "a:65535"], "listeners of broker 1 has port 65536; the highest is 65535"),
    ],
)
def test_an_invalid_option_is_reported_in_one_line_with_a_hint(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"ottla: {message} (")
    assert err.endswith(")\n")
    assert err.count("\n") == 1


def test_a_port_out_of_range_is_reported_with_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["--listen", "127.0.0.1:99999"]) == 2
    assert "port from 0 to 65535" in capsys.readouterr().err


def test_an_invalid_config_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.properties"
    file.write_text("listeners\n")
    with pytest.raises(OttlaError, match=r"bad\.properties: line 1"):
        parse_options(["--config", str(file)])
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OttlaError, match="it is not text"):
        parse_options(["--config", str(file)])


def test_help_shows_every_option_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["--help"]) == 0
    text = capsys.readouterr().out
    for option in (
        "--listen",
        "--insecure",
        "--data",
        "--config",
        "--set",
        "--metrics",
        "--log-level",
        "--brokers",
        "--node-id",
        "--metadata",
        "Examples:",
    ):
        assert option in text
