"""The store's keys and the encoding of their values: Kafka's layout in ZooKeeper, JSON values. Pure."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ottla.checks import endpoint_from_text, unsigned_from_text
from ottla.types import Endpoint, compact_json, uuid_from_text, uuid_to_text

BROKER_IDS = "/brokers/ids"
KNOWN_BROKERS = "/brokers/known"
TOPICS = "/brokers/topics"
CONFIGS = "/config/"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
SCRAM_SECRET = "/cluster/scram_secret"
"""The secret for the fake credentials of unknown users; the same on all brokers."""
MIGRATED_TO = "/migrated_to"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURES = "/feature"

DEFAULT_BROKER = "<default>"
"""The stored name of the settings that apply to every broker; in memory it is the empty string."""

NO_LEADER = -1
NO_CONTROLLER = -1


class RecordError(ValueError):
    """A stored value that is invalid for its key."""


def broker_key(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def known_broker_key(broker_id: int) -> str:
    return f"{KNOWN_BROKERS}/{broker_id}"


def topic_key(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partition_state_key(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_key(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def entity_config_key(path: str) -> str:
    """Of users, client ids and addresses: `users/alice`."""
    return CONFIGS + path


def broker_config_key(broker: str) -> str:
    return f"{BROKER_CONFIGS}/{broker or DEFAULT_BROKER}"


def read_json(key: str, value: bytes) -> dict[str, Any]:
    try:
        found = json.loads(value.decode())
    except ValueError as error:
        raise RecordError(f"{key}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RecordError(f"{key}: not a JSON object: {value[:80]!r}")
    return found


# Brokers


class BrokerRecord(NamedTuple):
    endpoints: dict[str, Endpoint]
    rack: str | None
    is_leaving: bool
    features: dict[str, tuple[int, int]]


_NO_FEATURES: Mapping[str, tuple[int, int]] = {}


def write_broker(
    endpoints: Mapping[str, Endpoint],
    rack: str | None,
    timestamp_ms: int,
    *,
    is_leaving: bool = False,
    features: Mapping[str, tuple[int, int]] = _NO_FEATURES,
) -> bytes:
    first = next(iter(endpoints.values()), Endpoint("", -1))
    value: dict[str, Any] = {
        "version": 5,
        "host": first.host,
        "port": first.port,
        "jmx_port": -1,
        "timestamp": str(timestamp_ms),
        "endpoints": [f"{name}://{endpoint}" for name, endpoint in endpoints.items()],
        "features": {
            name: {"min_version": lowest, "max_version": highest} for name, (lowest, highest) in features.items()
        },
    }
    if rack is not None:
        value["rack"] = rack
    if is_leaving:
        value["leaving"] = True
    return compact_json(value)


def read_broker(key: str, value: bytes) -> BrokerRecord:
    found = read_json(key, value)
    endpoints = {}
    for text in found.get("endpoints", ()):
        name, _, address = text.partition("://")
        endpoint = endpoint_from_text(address)
        if endpoint is None:
            raise RecordError(f"{key}: {text!r} is not NAME://host:port")
        endpoints[name] = endpoint
    try:
        features = {
            name: (int(levels["min_version"]), int(levels["max_version"]))
            for name, levels in found.get("features", {}).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{key}: {error!r}") from None
    return BrokerRecord(endpoints, found.get("rack"), found.get("leaving") is True, features)


def keep_epoch(key: str, value: bytes, epoch: int) -> bytes:
    """A broker's last registration with its epoch, which is otherwise the revision of the entry: for another store."""
    return compact_json({**read_json(key, value), "epoch": epoch})


def kept_epoch(key: str, value: bytes) -> int | None:
    """The epoch that came with the registration from another store."""
    epoch = read_json(key, value).get("epoch")
    return epoch if isinstance(epoch, int) else None


def write_migrated_to(location: str) -> bytes:
    return compact_json({"version": 1, "location": location})


def read_migrated_to(key: str, value: bytes) -> str:
    """Where the metadata of this store was moved: brokers must not use this copy."""
    return str(read_json(key, value).get("location", ""))


# Topics


class Placement(NamedTuple):
    """The replicas of one partition; `adding` and `removing` are those of a reassignment that is not complete."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class TopicRecord(NamedTuple):
    topic_id: bytes
    replicas: tuple[tuple[int, ...], ...]
    """The replicas of each partition, by partition index; the preferred leader comes first."""
    adding: Mapping[int, tuple[int, ...]] = {}
    removing: Mapping[int, tuple[int, ...]] = {}

    def placements(self) -> tuple[Placement, ...]:
        if not self.adding and not self.removing:
            return tuple(map(Placement, self.replicas))
        return tuple(
            Placement(replicas, self.adding.get(index, ()), self.removing.get(index, ()))
            for index, replicas in enumerate(self.replicas)
        )


_NONE: Mapping[int, tuple[int, ...]] = {}


def write_topic(
    topic_id: bytes,
    replicas: Sequence[Sequence[int]],
    adding: Mapping[int, Sequence[int]] = _NONE,
    removing: Mapping[int, Sequence[int]] = _NONE,
) -> bytes:
    return compact_json(
        {
            "version": 3,
            "topic_id": uuid_to_text(topic_id),
            "partitions": {str(index): list(brokers) for index, brokers in enumerate(replicas)},
            "adding_replicas": {str(index): list(brokers) for index, brokers in adding.items() if brokers},
            "removing_replicas": {str(index): list(brokers) for index, brokers in removing.items() if brokers},
        }
    )


def read_topic(key: str, value: bytes) -> TopicRecord:
    found = read_json(key, value)
    try:
        partitions = found["partitions"]
        replicas = tuple(tuple(partitions[str(index)]) for index in range(len(partitions)))
        changing = [
            {int(index): tuple(brokers) for index, brokers in found.get(name, {}).items()}
            for name in ("adding_replicas", "removing_replicas")
        ]
        return TopicRecord(uuid_from_text(found["topic_id"]), replicas, *changing)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{key}: {error!r}") from None


class RecoveringReplica(NamedTuple):
    """A replica that restarted without a clean shutdown, and how long its log is; -1 until it has reported that."""

    broker_id: int
    leader_epoch: int = -1
    """Of the last record in its log."""
    end_offset: int = -1


class PartitionState(NamedTuple):
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    recovering: tuple[RecoveringReplica, ...] = ()


def write_partition_state(
    leader: int,
    leader_epoch: int,
    isr: Sequence[int],
    controller_epoch: int = 0,
    elr: Sequence[int] = (),
    recovering: Sequence[RecoveringReplica] = (),
) -> bytes:
    return _write_state(leader, leader_epoch, tuple(isr), controller_epoch, tuple(elr), tuple(recovering))


@functools.lru_cache(1024)
def _write_state(
    leader: int,
    leader_epoch: int,
    isr: tuple[int, ...],
    controller_epoch: int,
    elr: tuple[int, ...],
    recovering: tuple[RecoveringReplica, ...],
) -> bytes:
    """Cached, and formatted without json.dumps: there is one per partition, and most have one of a few states."""
    more = f',"elr":[{",".join(map(str, elr))}]' if elr else ""
    if recovering:
        more += f',"recovering":{json.dumps([list(each) for each in recovering], separators=(",", ":"))}'
    return (
        f'{{"version":1,"leader":{leader},"leader_epoch":{leader_epoch},'
        f'"isr":[{",".join(map(str, isr))}],"controller_epoch":{controller_epoch}{more}}}'
    ).encode()


def read_partition_state(key: str, value: bytes) -> PartitionState:
    try:
        return _read_state(value)
    except (RecordError, KeyError, TypeError) as error:
        raise RecordError(f"{key}: {error!r}") from None


@functools.lru_cache(1024)
def _read_state(value: bytes) -> PartitionState:
    """Cached: in a small cluster, most partitions have one of a few states."""
    found = read_json("", value)
    return PartitionState(
        found["leader"],
        found["leader_epoch"],
        tuple(found["isr"]),
        tuple(found.get("elr", ())),
        tuple(RecoveringReplica(*each) for each in found.get("recovering", ())),
    )


# Settings


_EMPTY: Mapping[str, str] = {}
_NO_CONFIG = b'{"version":1,"config":{}}'


def write_config(config: Mapping[str, str]) -> bytes:
    return compact_json({"version": 1, "config": dict(config)})


def read_config(key: str, value: bytes) -> Mapping[str, str]:
    if value == _NO_CONFIG:
        return _EMPTY
    config = read_json(key, value).get("config")
    if not isinstance(config, dict):
        raise RecordError(f"{key}: field config is missing or not an object")
    return config


# The cluster


def write_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return compact_json({"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms)})


def read_controller(key: str, value: bytes) -> int:
    broker_id = read_json(key, value).get("brokerid")
    if not isinstance(broker_id, int):
        raise RecordError(f"{key}: field brokerid is missing or not an integer")
    return broker_id


def write_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def read_controller_epoch(key: str, value: bytes) -> int:
    epoch = unsigned_from_text(value)
    if epoch is None:
        raise RecordError(f"{key}: not a number: {value[:80]!r}")
    return epoch


def write_cluster_id(cluster_id: str) -> bytes:
    return compact_json({"version": "1", "id": cluster_id})


def read_cluster_id(key: str, value: bytes) -> str:
    cluster_id = read_json(key, value).get("id")
    if not isinstance(cluster_id, str):
        raise RecordError(f"{key}: field id is missing or not a string")
    return cluster_id


def write_features(levels: Mapping[str, int]) -> bytes:
    features = {name: {"min_version_level": level, "max_version_level": level} for name, level in levels.items()}
    return compact_json({"version": 2, "status": 1, "features": features})


def read_features(key: str, value: bytes) -> dict[str, int]:
    try:
        return {name: int(levels["max_version_level"]) for name, levels in read_json(key, value)["features"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{key}: {error!r}") from None


def write_producer_id_block(broker_id: int, first: int, last: int) -> bytes:
    return compact_json({"version": 1, "broker": broker_id, "block_start": str(first), "block_end": str(last)})


def read_producer_id_block(key: str, value: bytes) -> tuple[int, int]:
    found = read_json(key, value)
    try:
        return int(found["block_start"]), int(found["block_end"])
    except (KeyError, ValueError) as error:
        raise RecordError(f"{key}: {error!r}") from None
