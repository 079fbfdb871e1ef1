"""Several brokers on one host, started together: their directories, ports and default settings. Pure.

DIR/broker-0, DIR/broker-1 …   the data of each broker
DIR/cluster/metadata.sqlite    the metadata that they share
"""

import re
from collections.abc import Mapping

from ottla.errors import ConfigError
from ottla.metadata.opening import DATABASE_FILE, METADATA_DIRECTORY

REPLICAS = 3
_PORT = re.compile(r":([0-9]{1,9})(?=\s*(?:,|$))")
_PORT_MAX = 65_535
_ADDRESSES = ("listeners", "advertised.listeners", "ottla.metrics.listen")
"""Settings with ports: each broker gets its own."""


def broker_directory(data: str, node_id: int) -> str:
    return f"{data}/broker-{node_id}"


def metadata_file(data: str) -> str:
    return f"{data}/cluster/{DATABASE_FILE}"


def metadata_location(values: Mapping[str, str], *, is_cluster: bool) -> str:
    """Where brokers with these settings have their metadata: a file, or an address in etcd."""
    data = (values.get("log.dirs") or values.get("log.dir") or ".").rstrip("/") or "/"
    own = metadata_file(data) if is_cluster else f"{data}/{METADATA_DIRECTORY}/{DATABASE_FILE}"
    return values.get("ottla.metadata") or own


def settings_of_brokers(values: Mapping[str, str], count: int) -> list[dict[str, str]]:
    """The settings of each of `count` brokers. `values` are those that the user set, for all of them.

    Each broker gets the next port; 0 stays 0. Unless set otherwise, replication is as safe as the number of brokers
    allows.
    """
    data = (values.get("log.dirs") or values.get("log.dir") or ".").rstrip("/") or "/"
    shared = {**default_replication(count), "ottla.metadata": metadata_file(data), **values}
    shared.pop("log.dir", None)
    brokers = []
    for node_id in range(count):
        settings = {**shared, "node.id": str(node_id), "log.dirs": broker_directory(data, node_id)}
        for name in _ADDRESSES:
            if name in settings:
                settings[name] = _increase_ports(settings[name], node_id)
        brokers.append(settings)
    _check_ports(brokers)
    return brokers


def default_replication(brokers: int) -> dict[str, str]:
    """Settings for topics that survive the loss of a broker, as far as the number of brokers allows.

    With three brokers or more, a topic has three replicas and an acks=all write needs two of them. With two brokers,
    topics are not replicated by default: they would lose availability, not gain it, if writes needed both.
    """
    internal = str(min(REPLICAS, brokers))
    settings = {
        "offsets.topic.replication.factor": internal,
        "transaction.state.log.replication.factor": internal,
        "transaction.state.log.min.isr": "2" if brokers >= REPLICAS else "1",
    }
    if brokers >= REPLICAS:
        settings |= {"default.replication.factor": str(REPLICAS), "min.insync.replicas": "2"}
    return settings


def _increase_ports(addresses: str, by: int) -> str:
    def next_port(match: re.Match[str]) -> str:
        port = int(match[1])
        return f":{port + by if port else 0}"

    return _PORT.sub(next_port, addresses)


def _check_ports(brokers: list[dict[str, str]]) -> None:
    """Raises if the port of a broker is invalid, or collides with that of another listener or broker."""
    users: dict[int, str] = {}
    for settings in brokers:
        for name in ("listeners", "ottla.metrics.listen"):
            for port in map(int, _PORT.findall(settings.get(name, ""))):
                user = f"{name} of broker {settings['node.id']}"
                if port > _PORT_MAX:
                    raise ConfigError(
                        f"{user} has port {port}; the highest is {_PORT_MAX}", "Start with a lower port, or with 0."
                    )
                if port and port in users:
                    raise ConfigError(
                        f"{users[port]} and {user} have the same port {port}",
                        f"Each broker uses the next port: leave {len(brokers)} consecutive ports for each address.",
                    )
                users[port] = user
