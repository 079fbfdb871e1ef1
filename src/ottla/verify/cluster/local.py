"""OWNER of a cluster on this machine for a run with faults: brokers, their proxies and their clocks."""

import contextlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from ottla.broker.embedded.broker import EmbeddedBroker, joined_logs
from ottla.broker.one_host import settings_of_brokers
from ottla.checks import unsigned_from_text
from ottla.clock import SHIFT_FILE_VARIABLE
from ottla.errors import OttlaError
from ottla.verify.cluster.links import CLIENTS, STORE, Links
from ottla.verify.cluster.plan import FROM_ALL, FROM_BROKERS, FROM_CLIENTS, FROM_STORE
from ottla.verify.cluster.ports import free_ports
from ottla.verify.hangs import all_within

BROKERS_MAX = 9
START_LIMIT_S = 150.0
"""More than the time after which a broker that does not stop or start is killed."""
QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "2000",
}
"""Faults are detected quickly, and coordinators with few partitions move quickly."""


def parse_cluster(text: str) -> int:
    """The number of brokers.

    >>> parse_cluster("local:3")
    3
    """
    kind, _, number = text.partition(":")
    count = unsigned_from_text(number)
    if kind != "local" or count is None or not 1 <= count <= BROKERS_MAX:
        raise OttlaError(f"--cluster {text} is not a cluster", f"write local:N, with N from 1 to {BROKERS_MAX}")
    return count


class LocalCluster:
    """Brokers in child processes, for the length of a `with` block."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        module: str = "ottla",
        environment: Mapping[str, str] | None = None,
        store_ports: Sequence[int] = (),
        store_setting: str = "",
    ) -> None:
        """`store_ports` are those of a remote metadata store on this machine.

        `store_setting` is the value of `ottla.metadata` for it, with {} for the list of addresses.
        """
        self.brokers: list[EmbeddedBroker] = []
        self.has_remote_store = bool(store_ports)
        self._home = Path(tempfile.mkdtemp(prefix="ottla-verify-"))
        self._links = Links()
        ports = free_ports(brokers)
        try:
            given = {**QUICK, "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(self._home)}
            proxies = [self._links.open(f"broker-{n}", port) for n, port in enumerate(ports)]
            self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in proxies)
            for node_id, each in enumerate(settings_of_brokers(given, brokers)):
                del each["listeners"]
                each["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{proxies[node_id]}"
                if store_ports:
                    doors = [self._links.open(STORE, port, source=f"broker-{node_id}") for port in store_ports]
                    each["ottla.metadata"] = store_setting.format(",".join(f"127.0.0.1:{door}" for door in doors))
                self._shift_file(node_id).write_bytes(bytes(8))
                self.brokers.append(
                    EmbeddedBroker(
                        each.pop("log.dirs"),
                        settings=each,
                        listen=f"127.0.0.1:{ports[node_id]}",
                        wait=False,
                        environment={SHIFT_FILE_VARIABLE: str(self._shift_file(node_id)), **(environment or {})},
                        module=module,
                    )
                )
            for broker in self.brokers:
                broker.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for broker in self.brokers:
            with contextlib.suppress(OttlaError):
                broker.begin_close()
        for broker in self.brokers:
            with contextlib.suppress(OttlaError):
                broker.close()
        self._links.close()
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def log(self) -> str:
        """The logs of all brokers, one after the other."""
        return joined_logs(self.brokers)

    def kill(self, broker: int) -> None:
        """SIGKILL."""
        self.brokers[broker].kill()

    def pause(self, broker: int) -> None:
        """SIGSTOP."""
        self.brokers[broker].pause()

    def cut_off(self, broker: int, side: str) -> None:
        """Cuts the links of a broker on one side, in both directions."""
        self._links.cut(*self._links_of(broker, side))

    def shift_clock(self, broker: int, shift_ms: int) -> None:
        """Shifts the wall clock of a broker, from now on."""
        with open(self._shift_file(broker), "r+b") as file:
            file.write(shift_ms.to_bytes(8, "little", signed=True))

    def restore(self) -> list[str]:
        """Ends all faults. Returns one sentence for each broker that does not start."""
        for node_id, broker in enumerate(self.brokers):
            self._links.heal(*self._links_of(node_id, FROM_ALL))
            self.shift_clock(node_id, 0)
            broker.resume()
        dead = [node_id for node_id, broker in enumerate(self.brokers) if not broker.is_running]
        problems = all_within(START_LIMIT_S, "starting a broker", [partial(self._start, n) for n in dead])
        return [problem for problem in problems if problem]

    def _start(self, node_id: int) -> str:
        """Returns the error; an empty text if the broker runs."""
        try:
            self.brokers[node_id].stop()  # forgets a process that has crashed
            self.brokers[node_id].start()
        except OttlaError as error:
            return f"broker {node_id} does not start: {error.message} ({error.hint})"
        return ""

    def unexpected_ends(self) -> list[str]:
        """Brokers that are not running. Call it before faults begin: killed ones are not running either."""
        return [f"broker {n} has crashed" for n, broker in enumerate(self.brokers) if not broker.is_running]

    def _links_of(self, broker: int, side: str) -> list[tuple[str, str]]:
        name = f"broker-{broker}"
        others = [(name, f"broker-{n}") for n in range(len(self.brokers)) if n != broker]
        sides = {
            FROM_BROKERS: others,
            FROM_CLIENTS: [(name, CLIENTS)],
            FROM_STORE: [(name, STORE)],
            FROM_ALL: [*others, (name, CLIENTS), (name, STORE)],
        }
        return sides[side]

    def _shift_file(self, broker: int) -> Path:
        return self._home / f"clock-{broker}"
