"""The pytest fixtures of the package, used by a separate test suite."""

import importlib.metadata
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
IS_INSTALLED = any(entry.value == "ottla.pytest_plugin" for entry in importlib.metadata.entry_points(group="pytest11"))
# Without installation pytest has to be told about the plugin.
LOAD = [] if IS_INSTALLED else ["-p", "ottla.pytest_plugin"]

SUITE = """
import pytest
from ottla import Admin, Consumer, Producer

seen = set()

def check(broker, topic):
    assert topic not in seen
    seen.add(topic)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send_and_wait(topic, b"42 apples")
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in consumer.poll(300_000)] == [b"42 apples"]

@pytest.mark.parametrize("number", range(4))
def test_every_test_has_its_own_topic(ottla_broker, ottla_topic, number):
    check(ottla_broker, ottla_topic)

@pytest.mark.ottla_topic(partitions=3, configs={"cleanup.policy": "compact"})
def test_the_topic_can_be_configured(ottla_broker, ottla_topic):
    with Admin(bootstrap_servers=ottla_broker.bootstrap) as admin:
        (found,) = admin.describe_topics([ottla_topic])
        assert len(found.partitions) == 3
        settings = {entry.name: entry.value for entry in admin.describe_configs("topic", ottla_topic)}
        assert settings["cleanup.policy"] == "compact"
        assert settings["max.message.bytes"] == "12345"
"""
SETTINGS = "[pytest]\nottla_settings =\n    message.max.bytes=12345\n"
QUICK = """
import sys

def test_both_fixtures_work(ottla_broker, ottla_topic):
    assert ottla_topic
    assert "ottla.client.core.network" not in sys.modules, "the client is not needed"
"""
INVALID = """
import pytest

@pytest.mark.ottla_topic(configs={"cleanup.policy": "nonsense"})
def test_an_invalid_topic(ottla_topic):
    pass
"""
NOTHING = """
def test_nothing():
    pass
"""


def run_suite(directory: Path, code: str, *options: str) -> str:
    (directory / "test_suite.py").write_text(code)
    (directory / "pytest.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "pytest", "-q", *LOAD, "--strict-markers", *options]
    ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_plugin_is_registered_as_an_entry_point() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert declared["project"]["entry-points"]["pytest11"] == {"ottla": "ottla.pytest_plugin"}


def test_the_fixtures_provide_a_broker_and_new_topics(tmp_path: Path) -> None:
    assert "5 passed" in run_suite(tmp_path, SUITE, "-p", "no:xdist")


def test_the_fixtures_work_with_xdist(tmp_path: Path) -> None:
    assert "5 passed" in run_suite(tmp_path, SUITE, "--numprocesses", "2")


def processor_seconds(directory: Path, code: str) -> float:
    """CPU time of a run, including the broker. Unlike wall-clock time it hardly depends on the load of the machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_suite(directory, code, "-p", "no:xdist")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_fixtures_use_little_cpu_time(tmp_path: Path) -> None:
    """Starting a broker and creating a topic does not import the client and its event loop.

    The unit is an empty pytest run, so that the limit holds on slow machines, too.
    """
    with_fixtures, without = (min(processor_seconds(tmp_path, code) for _ in range(2)) for code in (QUICK, NOTHING))
    assert with_fixtures - without < 2.5 * without


def test_loading_the_plugin_imports_nothing_of_the_client(tmp_path: Path) -> None:
    code = "import ottla.pytest_plugin, sys; assert not {'asyncio', 'ottla.client', 'ottla.broker'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_an_invalid_topic_setting_is_reported_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(INVALID)
    command = [sys.executable, "-m", "pytest", "-q", *LOAD, "-p", "no:xdist"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1
    assert "INVALID_CONFIG" in ended.stdout
    assert "nonsense" in ended.stdout


def test_an_invalid_ini_setting_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(QUICK)
    (tmp_path / "pytest.ini").write_text("[pytest]\nottla_settings =\n    nonsense\n")
    command = [sys.executable, "-m", "pytest", "-q", *LOAD, "-p", "no:xdist"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode != 0
    assert "'nonsense' is not name=value" in ended.stdout + ended.stderr


CLUSTER = """
def brokers(cluster):
    from ottla import Admin
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return [node.node_id for node in admin.describe_cluster().brokers]

def test_a_broker_is_killed(ottla_cluster):
    assert brokers(ottla_cluster) == [0, 1, 2]
    ottla_cluster.kill(0)
    ottla_cluster.pause(1)

def test_the_next_test_has_all_brokers(ottla_cluster):
    assert all(broker.is_running for broker in ottla_cluster)
    assert 0 in brokers(ottla_cluster)
"""


def test_a_cluster_is_whole_again_for_the_next_test(tmp_path: Path) -> None:
    assert "2 passed" in run_suite(tmp_path, CLUSTER, "-p", "no:xdist")
