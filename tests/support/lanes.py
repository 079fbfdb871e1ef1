"""The lanes of the test suite as pytest hooks: --fast, --long, --record and --load, and the base seed of a run.

docs/testing.md describes the lanes. tests/conftest.py imports these hooks.
"""

import os
import platform
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.load import Load
from tests.support.long_runs import LongRun, record
from tests.support.seeds import ROOT, base_seed, commit_id

TESTS = ROOT / "tests"
STARTS_PROCESSES = tuple(TESTS / name for name in ("live", "compat", "spark"))
LONG_TIMEOUT_S = 3600
"""For one test of the long lane: some of them loop over thousands of seeds."""

_started = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ottla", "lanes of Ottla's own tests")
    group.addoption("--fast", action="store_true", help="in-process tests only; no Java, no child processes")
    group.addoption("--long", action="store_true", help="campaigns only: tests marked long or seeded")
    group.addoption("--record", action="store_true", help="with --long: write the result into docs/testing.md")
    group.addoption("--load", type=int, metavar="N", help="on a busy machine: N/2 workers next to N/2 busy loops")


def lane_of(config: pytest.Config) -> str:
    fast, long = config.getoption("--fast"), config.getoption("--long")
    if fast and long:
        raise pytest.UsageError("--fast and --long exclude each other: choose one lane")
    if config.getoption("--record") and not long:
        raise pytest.UsageError("--record is for the long lane: add --long")
    return "fast" if fast else "long" if long else "full"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # In the environment, so that every worker process of pytest-xdist gets the same lane and the same base seed.
    os.environ["OTTLA_LANE"] = lane_of(config)
    os.environ["OTTLA_SEED"] = str(base_seed())
    if os.environ["OTTLA_LANE"] == "long" and config.getoption("timeout", None) is None:
        config.option.timeout = LONG_TIMEOUT_S
    load = config.getoption("--load")
    if load is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Load(load))
    if not is_controller(config):
        from hypothesis import HealthCheck, settings

        # A busy machine must not fail a test, so there is no deadline for an example.
        slow = [HealthCheck.too_slow]
        settings.register_profile("ottla", deadline=None, print_blob=True, suppress_health_check=slow)
        settings.load_profile("ottla")
        if config.getoption("hypothesis_seed", None) is None:
            config.option.hypothesis_seed = str(base_seed())


def is_controller(config: pytest.Config) -> bool:
    """Whether this process only hands tests to pytest-xdist workers."""
    return not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no"


def pytest_report_header() -> str:
    return f"lane: {os.environ['OTTLA_LANE']}; base seed: {base_seed()} (replay with OTTLA_SEED={base_seed()})"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast lane does not even import tests that start processes."""
    return True if config.getoption("--fast") and collection_path in STARTS_PROCESSES else None


def belongs(item: pytest.Item, lane: str) -> bool:
    """Whether a test runs in this lane."""
    is_long = item.get_closest_marker("long") is not None
    if lane == "long":
        return is_long or item.get_closest_marker("seeded") is not None
    return not is_long and not (lane == "fast" and item.get_closest_marker("slow"))


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests of the lane."""
    lane = lane_of(config)
    left_out = [item for item in items if not belongs(item, lane)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if belongs(item, lane)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    failed = [*terminalreporter.stats.get("failed", []), *terminalreporter.stats.get("error", [])]
    if failed:
        flags = {"fast": " --fast", "long": " --long"}.get(lane_of(config), "")
        terminalreporter.write_line(
            f"base seed {base_seed()}; to replay: OTTLA_SEED={base_seed()} ./run test{flags} '{failed[0].nodeid}'"
        )
    if config.getoption("--record"):
        record(long_run(terminalreporter, bool(failed)))


def long_run(terminalreporter: pytest.TerminalReporter, has_failed: bool) -> LongRun:
    changes = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/testing.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    counts = {name: len(terminalreporter.stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    chosen = os.environ.get("OTTLA_SEEDS")
    return LongRun(
        command=f"{f'OTTLA_SEEDS={chosen} ' if chosen else ''}./run test --long",
        base_seed=base_seed(),
        commit=f"{commit_id()[:10]}{' with changes' if changes.stdout.strip() else ''}",
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}",
        duration_s=time.monotonic() - _started,
        result=", ".join(f"{count} {name}" for name, count in counts.items() if count),
        has_failed=has_failed,
    )
