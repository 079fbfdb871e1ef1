"""Spec: R8. A normal client beside all kinds of hostile peers at once. `./run bench --only hostile` takes longer."""

import dataclasses

import pytest

from ottla import Broker
from tests.support.hostile.attackers import ATTACKS
from tests.support.hostile.battlefield import Numbers
from tests.support.hostile.running import run, with_sasl
from tests.support.ports import fixed_port

SECONDS = 4.0
WAIT_LIMIT_S = 0.5
MEMORY_LIMIT_MB = 400.0


@pytest.mark.slow
def test_a_normal_client_beside_all_attacks() -> None:
    """No operation of the normal client fails or waits long, and memory stays bounded."""
    sasl_port = fixed_port()
    with Broker.embedded(**with_sasl(sasl_port)) as broker:
        numbers = dataclasses.replace(Numbers.small(), sasl_port=sasl_port)
        report = run(broker.bootstrap, broker.pid, seconds=SECONDS, numbers=numbers)
        log, is_running = broker.log, broker.is_running
    assert is_running
    assert "Traceback" not in log, log[max(0, log.index("Traceback") - 500) :][:3000]
    assert not report.errors, report.errors[:5]
    assert report.peak_mb < MEMORY_LIMIT_MB
    assert sorted(report.waits_s)[int(len(report.waits_s) * 0.99)] < WAIT_LIMIT_S
    broken = {name: count for name, count in report.counts.items() if "broken" in name or name.startswith("attackers")}
    assert not broken, broken
    assert {name.partition(":")[0].replace(" ", "-") for name in report.counts} == set(ATTACKS)
