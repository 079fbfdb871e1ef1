"""OWNER of several brokers in child processes that form one cluster: for tests, notebooks and demos."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from ottla.broker.embedded.broker import EmbeddedBroker, client_settings, create_security, joined_logs, setting_text
from ottla.broker.one_host import settings_of_brokers
from ottla.checks import require_number
from ottla.errors import OttlaError
from ottla.types import BROKERS_ON_HOST_MAX


class EmbeddedCluster:
    """A running cluster. Use it in a `with` block, or call `close()`.

    >>> with ottla.Broker.embedded(brokers=3) as cluster:
    ...     producer = Producer({"bootstrap.servers": cluster.bootstrap})
    ...     cluster.kill(0)

    Where a broker is an argument, it is its id (0, 1, …) or the `EmbeddedBroker` itself. With three brokers or more,
    topics have three replicas by default, and an acks=all write needs two of them.
    """

    brokers: tuple[EmbeddedBroker, ...]
    """By id."""
    data: Path
    """One directory for all brokers. A temporary one is removed when the cluster is closed."""

    def __init__(
        self,
        brokers: int = 3,
        data: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        listen: str = "127.0.0.1:0",
        log_level: str = "info",
        timeout: float = 60.0,
        secure: bool = False,
    ) -> None:
        self._security = create_security(listen) if secure else None
        count = require_number(brokers, "brokers", at_least=1, at_most=BROKERS_ON_HOST_MAX)
        self._temporary = tempfile.TemporaryDirectory(prefix="ottla-") if data is None else None
        self.data = Path(self._temporary.name if self._temporary is not None else data)  # type: ignore[arg-type]
        self.brokers = ()
        given = {name: setting_text(value) for name, value in (settings or {}).items()}
        given |= {"listeners": f"PLAINTEXT://{listen}", "log.dirs": str(self.data)}
        try:
            for each in settings_of_brokers(given, count):
                directory = each.pop("log.dirs")
                address = each.pop("listeners").removeprefix("PLAINTEXT://")
                # All start at the same time.
                broker = EmbeddedBroker(
                    directory,
                    settings=each,
                    listen=address,
                    log_level=log_level,
                    timeout=timeout,
                    secure=self._security or False,
                    wait=False,
                )
                self.brokers = (*self.brokers, broker)
            for broker in self.brokers:
                broker.wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        """The value for `bootstrap.servers`: all brokers, also those that are not running."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def client_settings(self) -> dict[str, str]:
        """What a client needs to connect, including TLS and the password of a secure cluster."""
        return client_settings(self.bootstrap, self._security)

    @property
    def log(self) -> str:
        """Everything the brokers have logged so far, one after the other. `cluster[0].log` is that of one broker."""
        return joined_logs(self.brokers)

    def __getitem__(self, node_id: int) -> EmbeddedBroker:
        return self._find(node_id)

    def __iter__(self) -> Iterator[EmbeddedBroker]:
        return iter(self.brokers)

    def __len__(self) -> int:
        return len(self.brokers)

    def kill(self, broker: int | EmbeddedBroker) -> None:
        """Kills a broker with SIGKILL. `restart` starts it again."""
        self._find(broker).kill()

    def stop(self, broker: int | EmbeddedBroker) -> None:
        """Stops a broker cleanly: it hands over its partitions first. `restart` starts it again."""
        self._find(broker).stop()

    def pause(self, broker: int | EmbeddedBroker) -> None:
        """Suspends a broker (SIGSTOP) until `resume`. After the session timeout the others treat it as dead."""
        self._find(broker).pause()

    def resume(self, broker: int | EmbeddedBroker) -> None:
        """Continues a paused broker."""
        self._find(broker).resume()

    def restart(self, broker: int | EmbeddedBroker) -> None:
        """Starts a broker on the same data and port; stops it first if it runs. Returns when it serves clients."""
        self._find(broker).restart()

    def restore(self) -> None:
        """Resumes every paused broker, and starts every broker that does not run."""
        for broker in self.brokers:
            broker.resume()
        for broker in self.brokers:
            if not broker.is_running:
                broker.restart()

    def close(self) -> None:
        """Stops all brokers at once, and removes the data if it is in a temporary directory."""
        problems = []
        for broker in self.brokers:
            broker.begin_close()
        for broker in self.brokers:
            try:
                broker.close()
            except OttlaError as error:
                problems.append(error)
        if self._temporary is not None:
            self._temporary.cleanup()
        if self._security is not None:
            self._security.close()
        if problems:
            raise problems[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        running = sum(broker.is_running for broker in self.brokers)
        return f"<cluster of {len(self.brokers)} brokers, {running} running>"

    def _find(self, broker: int | EmbeddedBroker) -> EmbeddedBroker:
        if isinstance(broker, EmbeddedBroker):
            if broker not in self.brokers:
                raise OttlaError(
                    f"{broker!r} is not a broker of this cluster", f"Pass its id, 0 to {len(self.brokers) - 1}."
                )
            return broker
        if not 0 <= broker < len(self.brokers):
            raise OttlaError(f"there is no broker {broker}", f"The brokers are 0 to {len(self.brokers) - 1}.")
        return self.brokers[broker]
