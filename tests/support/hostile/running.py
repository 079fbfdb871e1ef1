"""Runs attackers and a normal client against a broker, and watches the broker's memory and CPU time meanwhile."""

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ottla.child_process import child_environment
from tests.support.hostile.attackers import ATTACKS, GRACE_S
from tests.support.hostile.battlefield import LATE_S, Numbers
from tests.support.hostile.normal_client import ALL
from tests.support.hostile.strangers import MECHANISM
from tests.support.seeds import ROOT

SAMPLE_S = 0.2
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
OPERATIONS_PER_S = 100.0


@dataclasses.dataclass
class Report:
    """What one run found."""

    latencies_s: dict[str, list[float]]
    """Of the normal client, by operation, in order."""
    waits_s: list[float]
    """Of the normal client: see `Wait`."""
    errors: list[str]
    """Of the normal client."""
    counts: dict[str, int]
    """What the attackers did."""
    peak_mb: float
    """Resident memory of the broker's processes: the largest sample of their sum, or the peak of the first alone."""
    end_mb: float
    broker_cpu: float
    """As a share of one core."""
    attackers_cpu: float
    seconds: float

    def quantile_ms(self, share: float, operation: str = ALL) -> float:
        found = sorted(self.latencies_s[operation])
        return found[min(len(found) - 1, int(len(found) * share))] * 1000

    @property
    def operations(self) -> list[str]:
        return list(self.latencies_s)


def run(
    bootstrap: str,
    pid: int,
    *,
    attacks: Sequence[str] = tuple(ATTACKS),
    seconds: float,
    numbers: Numbers,
    tick: Callable[[float], None] = lambda _: None,
) -> Report:
    """Runs the attacks for a time. `tick` is called with the seconds that have passed."""
    options = json.dumps({"attacks": list(attacks), "seconds": seconds, "numbers": dataclasses.asdict(numbers)})
    with child("attackers", bootstrap, options) as attackers:
        await_ready(attackers)
        with child("normal_client", bootstrap, str(OPERATIONS_PER_S), str(pid)) as client:
            await_ready(client)
            cpu, started = cpu_seconds(pid), time.monotonic()
            tell(attackers)
            peak = 0.0
            while attackers.poll() is None and time.monotonic() - started < seconds + LATE_S + GRACE_S + 10:
                time.sleep(SAMPLE_S)
                peak = max(peak, memory_mb(pid))
                tick(time.monotonic() - started)
                if is_over(attackers) and client.poll() is None:
                    break
            taken = time.monotonic() - started
            broker_cpu = (cpu_seconds(pid) - cpu) / taken
            tell(client)
            measured = read_json(client)
        attacked = read_json(attackers)
    peak = max(peak, memory_mb(pid), peak_mb(pid))
    return Report(
        latencies_s=measured["seconds"],
        waits_s=measured["waits"],
        errors=measured["errors"],
        counts=attacked["counts"],
        peak_mb=peak,
        end_mb=memory_mb(pid),
        broker_cpu=broker_cpu,
        attackers_cpu=attacked["cpu_seconds"] / taken,
        seconds=taken,
    )


def with_sasl(port: int, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Arguments for an embedded broker with a second listener, at `port`, that requires SASL."""
    security = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,STRANGERS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": MECHANISM,
    }
    listen = f"PLAINTEXT://127.0.0.1:0,STRANGERS://127.0.0.1:{port}"
    return {"listen": listen, "settings": {**security, **(settings or {})}}


# --- the two processes ------------------------------------------------------------------------------------


@contextlib.contextmanager
def child(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = child_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.support.hostile.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "ready\n":
        raise RuntimeError(f"{process.args!r} ended early: {line!r}")


def is_over(attackers: subprocess.Popen[str]) -> bool:
    """Whether the attackers have stopped; they may still wait for their last responses."""
    assert attackers.stdout is not None
    return bool(select.select([attackers.stdout], [], [], 0)[0]) and attackers.stdout.readline() == "over\n"


def tell(process: subprocess.Popen[str]) -> None:
    """Tells a process to go on: the attackers to begin, the client to end."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        # The clock of the whole machine: both processes read the same.
        process.stdin.write(f"{time.perf_counter()}\n")
        process.stdin.flush()


def read_json(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended without a result")
    return json.loads(line)


# --- the broker's process ---------------------------------------------------------------------------------


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def memory_mb(pid: int) -> float:
    """Resident memory of a process and its descendants."""
    return sum(status_mb(member, "VmRSS:") for member in family(pid))


def peak_mb(pid: int) -> float:
    return status_mb(pid, "VmHWM:")


def status_mb(pid: int, name: str) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
    return 0.0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants."""
    ticks = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND
