"""A broker in a child process: it starts quickly, keeps its data, and never outlives its parent."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ottla
from ottla.broker.embedded.broker import EmbeddedBroker
from ottla.errors import OttlaError
from tests.support.waiting import PATIENCE_S

SOURCE = str(Path(__file__).parents[3] / "src")


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def accepts(broker: EmbeddedBroker) -> bool:
    try:
        socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return False
    return True


def test_it_runs_inside_a_with_block_and_leaves_nothing_behind() -> None:
    with ottla.Broker.embedded() as broker:
        assert broker.bootstrap == f"127.0.0.1:{broker.port}"
        assert broker.is_running
        assert accepts(broker)
        data, pid = broker.data, broker.pid
        assert data.is_dir()
    assert not broker.is_running
    assert not data.exists()
    assert not is_alive(pid)


def test_a_directory_passed_by_the_caller_is_kept(tmp_path: Path) -> None:
    with ottla.Broker.embedded(tmp_path / "data"):
        pass
    assert (tmp_path / "data").is_dir()


def test_settings_reach_the_broker_in_kafkas_words() -> None:
    settings = {"auto.create.topics.enable": False, "num.partitions": 7}
    with ottla.Broker.embedded(settings=settings) as broker:
        command = Path(f"/proc/{broker.pid}/cmdline").read_bytes().decode().split("\0")
    assert "auto.create.topics.enable=false" in command
    assert "num.partitions=7" in command


def test_a_killed_broker_comes_back_on_the_same_port_and_data() -> None:
    with ottla.Broker.embedded() as broker:
        port, data, pid = broker.port, broker.data, broker.pid
        broker.kill()
        assert not broker.is_running
        assert not is_alive(pid)
        broker.restart()
        assert broker.port == port
        assert broker.data == data
        assert broker.pid != pid
        assert accepts(broker)
        broker.restart()  # also from a running one
        assert broker.port == port
        assert accepts(broker)


def test_a_stopped_broker_reports_that_it_is_not_running() -> None:
    with ottla.Broker.embedded() as broker:
        broker.stop()
        broker.stop()  # no harm
        assert "stopped" in repr(broker)
        with pytest.raises(OttlaError, match="the broker is not running"):
            broker.kill()
        assert "has stopped" in broker.log


def test_a_broker_that_cannot_start_reports_why() -> None:
    with pytest.raises(OttlaError, match="did not start") as caught:
        ottla.Broker.embedded(settings={"num.partitions": "none"})
    assert "Invalid value none for configuration num.partitions" in caught.value.hint


def test_a_broker_that_does_not_get_ready_in_time_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\necho thinking >&2\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    with pytest.raises(OttlaError, match="not ready within") as caught:
        EmbeddedBroker(timeout=3)
    assert caught.value.hint == "thinking"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import ottla, sys, time\n"
        f"broker = ottla.Broker.embedded({str(tmp_path / 'data')!r})\n"
        "print(broker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCE}
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.send_signal(number)
    parent.communicate(timeout=PATIENCE_S)
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline, "the broker outlived its parent"
        time.sleep(0.01)


def test_importing_the_package_alone_loads_nothing_of_it() -> None:
    code = "import sys, ottla; print(' '.join(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, "PYTHONPATH": SOURCE}, check=True
    )
    loaded = out.stdout.decode().split()
    assert "ottla" in loaded
    assert not [name for name in loaded if name.startswith(("ottla.", "asyncio", "uvloop"))]
    assert not hasattr(ottla, "nonsense")
    assert "Broker" in dir(ottla)


def test_an_application_with_many_open_files_can_have_one() -> None:
    """select() takes no descriptor above 1,023."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2_048:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        with ottla.Broker.embedded() as broker:
            assert accepts(broker)
    finally:
        for handle in held:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
