"""Several brokers on one host: `ottla serve --brokers N`, or N commands that share a metadata file. Spec: B10"""

import functools
import os
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla import Admin
from tests.support.ports import ports_in_a_row
from tests.support.waiting import PATIENCE_S, eventually

SOURCE = str(Path(__file__).parents[3] / "src")


def start(*arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ottla", "serve", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )


def ready_line(process: subprocess.Popen[bytes]) -> str:
    """The addresses in the ready line."""
    assert process.stdout is not None
    assert process.stderr is not None
    readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert readable, "no ready line"
    line = process.stdout.readline().decode().strip()
    assert line.startswith("ottla ready: "), line + process.stderr.read().decode()
    return line.removeprefix("ottla ready: ")


@contextmanager
def serving(*arguments: str, stdin: int = subprocess.DEVNULL) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    process = start("--listen", "127.0.0.1:0", *arguments, stdin=stdin)
    try:
        yield process, ready_line(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def brokers_of(bootstrap: str) -> dict[int, str]:
    with Admin(bootstrap_servers=bootstrap) as admin:
        return {node.node_id: f"{node.host}:{node.port}" for node in admin.describe_cluster().brokers}


def pids_of(supervisor: subprocess.Popen[bytes]) -> list[int]:
    text = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def refused(*arguments: str) -> str:
    """The one line that a failed start prints."""
    process = start(*arguments)
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()  # it runs, although it should not
        out, err = process.communicate()
    text = err.decode()
    assert process.returncode == 2, text
    assert out == b""
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("ottla: ")]
    return line


# One command


def test_one_command_runs_three_brokers_that_one_signal_stops(tmp_path: Path) -> None:
    with serving("--brokers", "3", "--data", str(tmp_path)) as (process, bootstrap):
        addresses = bootstrap.split(",")
        assert brokers_of(bootstrap) == dict(enumerate(addresses))
        assert len(set(addresses)) == 3
        children = pids_of(process)
        assert len(children) == 3
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err.decode()
        assert out == b""
        assert b"Traceback" not in err
        assert err.count(b"has stopped") == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert {path.name for path in tmp_path.iterdir()} == {"broker-0", "broker-1", "broker-2", "cluster"}


def test_ports_are_counted_up(tmp_path: Path) -> None:
    first = ports_in_a_row(3)
    process = start("--brokers", "3", "--listen", f"127.0.0.1:{first}", "--data", str(tmp_path))
    try:
        assert ready_line(process) == ",".join(f"127.0.0.1:{first + n}" for n in range(3))
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_a_broker_that_is_killed_is_started_again_on_its_port(tmp_path: Path) -> None:
    with serving("--brokers", "3", "--data", str(tmp_path)) as (process, bootstrap):
        before = brokers_of(bootstrap)
        victim = pids_of(process)[1]
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: len(pids_of(process)) == 3 and victim not in pids_of(process))
        eventually(lambda: brokers_of(bootstrap) == before)
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err.decode()
        assert re.search(r"ottla: broker \d: ended with signal SIGKILL; restarting it in 0.5 s", err.decode())
        assert re.search(r"ottla: broker \d is back at 127\.0\.0\.1:\d+", err.decode())


def test_a_broker_that_fails_again_is_started_later_each_time(tmp_path: Path) -> None:
    with serving("--brokers", "2", "--data", str(tmp_path)) as (process, bootstrap):
        # Its port is taken while it is away, so it cannot start again.
        port = int(bootstrap.split(",")[1].rpartition(":")[2])
        os.kill(pids_of(process)[1], signal.SIGKILL)
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            eventually(functools.partial(binds, taken, port))
            taken.listen()
            lines = read_lines(process, 3)
        assert [line.rpartition("restarting it in ")[2] for line in lines] == ["0.5 s", "1 s", "2 s"]
        assert "the port is in use" in lines[1]
        eventually(lambda: len(brokers_of(bootstrap)) == 2)


def test_another_number_of_brokers_can_be_started(tmp_path: Path) -> None:
    for number, says in (
        (2, b""),
        (3, b""),
        (1, b"ottla: found data of broker 1, 2, which --brokers 1 does not start"),
    ):
        with serving("--brokers", str(number), "--data", str(tmp_path)) as (process, bootstrap):
            assert list(brokers_of(bootstrap)) == list(range(number))
            process.terminate()
            _, err = process.communicate(timeout=PATIENCE_S)
            assert says in err
            assert (b"found data of" in err) == bool(says)


def test_a_broker_that_is_stopped_by_itself_returns_without_a_longer_delay(tmp_path: Path) -> None:
    with serving("--brokers", "2", "--data", str(tmp_path)) as (process, _):
        for _ in range(2):
            os.kill(pids_of(process)[1], signal.SIGTERM)
            stopped, back = read_lines(process, 2)
            assert re.fullmatch(r"ottla: broker \d: was stopped; restarting it in 0\.5 s", stopped)
            assert "is back at" in back


def binds(taken: socket.socket, port: int) -> bool:
    try:
        taken.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def read_lines(process: subprocess.Popen[bytes], count: int) -> list[str]:
    """What the supervisor says, without the logs of its brokers."""
    assert process.stderr is not None
    lines: list[str] = []
    while len(lines) < count:
        line = process.stderr.readline().decode()
        assert line, "the supervisor has ended"
        lines += [line.strip()] if line.startswith("ottla: ") else []
    return lines


def test_a_second_signal_stops_everything_at_once(tmp_path: Path) -> None:
    with serving("--brokers", "2", "--data", str(tmp_path)) as (process, _):
        children = pids_of(process)
        os.kill(children[0], signal.SIGSTOP)  # it does not stop when it is asked to
        process.send_signal(signal.SIGINT)
        eventually(lambda: len(pids_of(process)) == 1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_broker_outlives_its_supervisor(tmp_path: Path, number: signal.Signals) -> None:
    with serving("--brokers", "2", "--data", str(tmp_path)) as (process, _):
        children = pids_of(process)
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_closing_standard_input_stops_the_brokers(tmp_path: Path) -> None:
    arguments = ("--brokers", "2", "--data", str(tmp_path), "--stop-with-stdin")
    with serving(*arguments, stdin=subprocess.PIPE) as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_topics_are_there_after_a_restart_of_all(tmp_path: Path) -> None:
    for _ in range(2):
        with serving("--brokers", "3", "--data", str(tmp_path)) as (process, bootstrap):
            with Admin(bootstrap_servers=bootstrap) as admin:
                if not admin.list_topics():
                    admin.create_topic("orders", partitions=6)
                (topic,) = admin.list_topics()
                assert {len(p.replicas) for p in topic.partitions} == {3}
                eventually(functools.partial(is_led_by, admin, {0, 1, 2}))
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0


def is_led_by(admin: Admin, brokers: set[int]) -> bool:
    return {p.leader for topic in admin.list_topics() for p in topic.partitions} == brokers


def test_a_taken_port_stops_all_brokers_with_one_line(tmp_path: Path) -> None:
    first = ports_in_a_row(3)
    with socket.create_server(("127.0.0.1", first + 2)):
        line = refused("--brokers", "3", "--listen", f"127.0.0.1:{first}", "--data", str(tmp_path))
    assert line.startswith(f"ottla: broker 2: cannot listen on 127.0.0.1:{first + 2}: the port is in use (")


def test_a_wrong_setting_is_reported_once(tmp_path: Path) -> None:
    arguments = ("--brokers", "3", "--listen", "127.0.0.1:0", "--data", str(tmp_path))
    assert "num.partitions" in refused(*arguments, "--set", "num.partitions=none")


def test_the_directory_of_a_single_broker_is_not_that_of_a_cluster(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving("--data", str(data)) as (process, bootstrap):
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic("orders")
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    line = refused("--brokers", "3", "--listen", "127.0.0.1:0", "--data", str(data))
    assert f"{data} is the data directory of a single broker" in line
    # The line says how to make it a cluster.
    commands = line.partition("broker 0 of a cluster: ")[2].removesuffix(")")
    subprocess.run(["sh", "-ec", commands], check=True)
    with serving("--brokers", "3", "--data", str(data)) as (_, bootstrap), Admin(bootstrap_servers=bootstrap) as admin:
        assert [topic.name for topic in admin.list_topics()] == ["orders"]


def test_the_directory_of_a_cluster_is_not_that_of_a_single_broker(tmp_path: Path) -> None:
    with serving("--brokers", "2", "--data", str(tmp_path)) as (process, _):
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    line = refused("--listen", "127.0.0.1:0", "--data", str(tmp_path))
    assert f"{tmp_path} is the data directory of a cluster (Start the cluster with --brokers N" in line


def metrics_of(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_metrics_show_a_failover(tmp_path: Path) -> None:
    first = ports_in_a_row(3)
    arguments = ("--brokers", "3", "--data", str(tmp_path), "--metrics", f"127.0.0.1:{first}")
    with serving(*arguments) as (process, bootstrap):
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic("orders", partitions=6)
        before = [metrics_of(first + n) for n in range(3)]
        assert [found["ottla_leaders"] for found in before] == [2, 2, 2]
        assert [found["ottla_under_replicated_partitions"] for found in before] == [0, 0, 0]
        assert sum(found["ottla_active_controller"] for found in before) == 1
        assert before[0]["ottla_brokers"] == 3
        os.kill(pids_of(process)[0], signal.SIGKILL)
        others = (first + 1, first + 2)
        eventually(lambda: sum(metrics_of(port)["ottla_failover_seconds_count"] for port in others) == 2)
        after = [metrics_of(port) for port in others]
        assert sum(found["ottla_isr_shrinks_total"] for found in after) >= 2
        assert all(found["ottla_offline_partitions"] == 0 for found in after)
        assert all('ottla_replica_lag_seconds{broker="0"}' in found for found in after)


# By hand


def test_three_commands_with_the_same_metadata_form_a_cluster(tmp_path: Path) -> None:
    def by_hand(node_id: int) -> tuple[str, ...]:
        return ("--node-id", str(node_id), "--metadata", str(tmp_path / "m"), "--data", str(tmp_path / str(node_id)))

    with serving(*by_hand(0)) as (_, a), serving(*by_hand(1)) as (_, b), serving(*by_hand(2)) as (_, c):
        assert brokers_of(b) == {0: a, 1: b, 2: c}
        taken = ("--node-id", "1", "--metadata", str(tmp_path / "m"), "--data", str(tmp_path / "other"))
        line = refused("--listen", "127.0.0.1:0", *taken)
        assert "another running broker is registered with node.id 1 (" in line
        assert brokers_of(b) == {0: a, 1: b, 2: c}


def test_a_broker_does_not_start_with_the_metadata_of_another_cluster(tmp_path: Path) -> None:
    def run_once(metadata: str, data: str) -> None:
        with serving("--metadata", str(tmp_path / metadata), "--data", str(tmp_path / data)) as (process, _):
            process.terminate()
            process.communicate(timeout=PATIENCE_S)

    run_once("m", "a")
    run_once("n", "b")
    wrong = ("--listen", "127.0.0.1:0", "--metadata", str(tmp_path / "n"), "--data", str(tmp_path / "a"))
    assert "belongs to cluster" in refused(*wrong)
    run_once("m", "a")


def test_a_broker_does_not_start_with_the_data_of_another_broker(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path)) as (process, _):
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    line = refused("--listen", "127.0.0.1:0", "--data", str(tmp_path), "--node-id", "4")
    assert f"{tmp_path} is the data directory of broker 0, not of broker 4 (Start it with --node-id 0" in line


def test_a_metadata_path_may_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with serving("--metadata", str(tmp_path / "m"), "--data", str(tmp_path / "d")):
        assert (tmp_path / "m" / "metadata.sqlite").exists()
        assert not (tmp_path / "d" / "metadata").exists()


def test_an_impossible_metadata_path_is_reported(tmp_path: Path) -> None:
    line = refused("--listen", "127.0.0.1:0", "--data", str(tmp_path), "--metadata", "/proc/nowhere/m")
    assert "cannot use /proc/nowhere/m as metadata file" in line
