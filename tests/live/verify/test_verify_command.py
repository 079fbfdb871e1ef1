"""`ottla verify` as a user runs it. Spec: R2"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ottla.child_process import child_environment
from tests.support.seeds import base_seed
from tests.support.waiting import PATIENCE_S, stretched

pytestmark = pytest.mark.slow


def verify(*words: str, timeout_s: float = 3 * PATIENCE_S) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ottla", "verify", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, env=child_environment()
    )


def test_a_short_run_finds_nothing_and_its_history_can_be_checked_again(tmp_path: Path) -> None:
    """One broker, all workloads, a few seconds; the longer runs are in the long lane."""
    done = verify(
        "--cluster", "local:1", "--time", f"{stretched(3_000) // 1000}s", "--clients", "2", "--seed", "1",
        "--output", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no anomaly found" in done.stdout
    again = verify("--history", str(tmp_path / "history.jsonl"), "--json")
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    assert result["result"] == "clean"
    assert {row["name"] for row in result["operations"]} >= {"send", "poll", "transaction", "copy", "commit"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--faults", "kill"], "--faults needs a local cluster (add --cluster local:3)"),
        (["--cluster", "local:3", "--faults", "meteor"], "unknown fault 'meteor' (choose from kill, pause"),
        (["--cluster", "far:3"], "--cluster far:3 is not a cluster (write local:N"),
        (["--time", "soon"], "'soon' is not a time (write it as in 90s"),
        (["--workload", "chess"], "unknown workload 'chess' (choose from list-append"),
        (["--client", "carrier-pigeon"], "unknown value carrier-pigeon for --client"),
        (["--bootstrap", "127.0.0.1:1"], "cannot connect to 127.0.0.1:1"),
        (["--history", "no-such-file"], "no-such-file: no such file or directory"),
    ],
)
def test_a_run_that_is_impossible_says_why_and_ends_with_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from ottla.cli.main import main

    assert main(["verify", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_not_a_history_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ottla.cli.main import main

    file = tmp_path / "notes.txt"
    for text, message in (
        ("", "is empty"),
        ("dear diary", "line 1, is not part of a history"),
        ("{}", "is not a history of this version"),
        ('{"ottla-verify": 1, "about": {}, "stuck": []}\n{"client": "a", "outcome": "great"}', "line 2"),
    ):
        file.write_text(text)
        assert main(["verify", "--history", str(file)]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


# --- the long lane ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("client", ["ottla", "both"])
def test_three_brokers_with_all_faults_show_no_anomaly(client: str) -> None:
    done = verify(
        "--cluster", "local:3", "--faults", "kill,pause,partition,clock", "--time", "2m", "--client", client,
        "--seed", str(base_seed() % 1_000_000), timeout_s=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_faults_are_announced_and_recorded() -> None:
    done = verify("--cluster", "local:1", "--faults", "kill", "--time", "12s", "--seed", "1", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    faults = json.loads(done.stdout)["faults"]
    assert faults
    assert {(fault["kind"], tuple(fault["brokers"])) for fault in faults} == {("kill", (0,))}
    assert all(0 < fault["started_us"] < fault["ended_us"] for fault in faults)


@pytest.mark.long
@pytest.mark.parametrize("client", ["ottla", "confluent", "both"])
def test_one_broker_without_faults_shows_no_anomaly(client: str) -> None:
    done = verify("--cluster", "local:1", "--time", "40s", "--client", client)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_cluster_that_stops_answering_is_reported_and_the_run_ends() -> None:
    from ottla import Broker

    with Broker.embedded() as broker:
        pausing = threading.Timer(5, broker.pause)
        pausing.start()
        done = verify(
            "--bootstrap", broker.bootstrap, "--time", "8s", "--patience", "5s", "--clients", "2", "--json",
            timeout_s=500,
        )  # fmt: skip
        pausing.join()
        broker.resume()
    assert done.returncode == 1, done.stdout + done.stderr
    assert {anomaly["kind"] for anomaly in json.loads(done.stdout)["anomalies"]} == {"no progress"}


@pytest.mark.long
@pytest.mark.parametrize("client", ["ottla", "confluent"])
def test_a_secure_cluster_is_verified_with_the_settings_of_a_file(tmp_path: Path, client: str) -> None:
    from ottla import Broker

    file = tmp_path / "client.properties"
    with Broker.embedded(secure=True) as broker:
        file.write_text("".join(f"{name}={value}\n" for name, value in broker.client_settings.items()))
        file.chmod(0o600)
        done = verify("--config", str(file), "--time", "5s", "--client", client, "--clients", "2")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_cluster_with_metadata_in_etcd_shows_no_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers are also cut off from etcd."""
    from tests.support.processes.etcd import NoEtcd, find_etcd

    try:
        program = find_etcd()
    except NoEtcd as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("PATH", f"{Path(program).parent}{os.pathsep}{os.environ['PATH']}")
    done = verify(
        "--cluster", "local:3", "--metadata", "etcd", "--faults", "kill,pause,partition,clock", "--time", "2m",
        "--seed", str(base_seed() % 1_000_000), timeout_s=540,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
