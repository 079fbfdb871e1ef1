"""The cluster as one broker sees it: immutable, and built only from the store's entries. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ottla.metadata import acl_records, records
from ottla.metadata.store import Change, Entry
from ottla.security.acls import Acls, ResourcePattern
from ottla.types import INTERNAL_TOPICS, Endpoint, TopicPartition


class BrokerRegistration(NamedTuple):
    """A live broker. `epoch` increases each time the broker registers."""

    broker_id: int
    epoch: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    is_leaving: bool = False
    """It is shutting down: it neither becomes leader nor joins an in-sync set."""
    features: Mapping[str, tuple[int, int]] = {}
    """The levels of features that it supports: the lowest and the highest."""


class PartitionImage(NamedTuple):
    """One partition's replicas. `partition_epoch` increases with every change, `leader_epoch` with every new leader."""

    index: int  # type: ignore[assignment]  # a field of the protocol's, not tuple.index
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    """All replicas, the preferred leader first. During a reassignment, those that are being added or removed too."""
    isr: tuple[int, ...]
    """The in-sync set. It is never empty: the last member stays, even when it is gone."""
    elr: tuple[int, ...] = ()
    """Eligible leader replicas (KIP-966): outside the in-sync set, but with every committed record, because nothing
    is committed while the in-sync set is smaller than min.insync.replicas."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    recovering: tuple[records.RecoveringReplica, ...] = ()
    """Members that restarted without a clean shutdown while no other member was alive. If all of them did, the one
    with the longest log becomes leader."""

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)


class TopicImage(NamedTuple):
    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True)
class ClusterImage:
    """The state of the cluster at one store revision."""

    cluster_id: str = ""
    controller_id: int = records.NO_CONTROLLER
    controller_epoch: int = 0
    """Increases with every new controller."""
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    known_brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    """The last registration of every broker of the cluster, alive or not, until it is unregistered."""
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[bytes, str] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic broker settings, by broker id as text; those for all brokers under the empty string."""
    acls: Acls = field(default_factory=dict)
    entity_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings of users, client ids and addresses: quotas, and credentials of users. By their path below `/config/`."""
    features: Mapping[str, int] = field(default_factory=dict)
    """Finalized levels of features that were changed; the others run at their default."""
    features_epoch: int = 0
    """Increases with every change of a level. Clients keep the features of the highest epoch they have seen."""
    version: int = 0
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """A cache for values derived from this image; it is dropped with the image."""

    @property
    def shown_controller_id(self) -> int:
        """The controller id for clients. If there is none, any broker: each of them can serve controller requests."""
        if self.controller_id in self.brokers:
            return self.controller_id
        return next(iter(self.brokers), records.NO_CONTROLLER)

    def find_partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def find_topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def apply(self, changes: Iterable[Change], version: int) -> "ClusterImage":
        """The image after `changes`. Unchanged parts are shared; if nothing changes, returns the same image."""
        draft = _Draft(self)
        for change in changes:
            draft.apply(change)
        return draft.finish(version)


NO_IMAGE = ClusterImage()


class _Draft:
    """Builds the next image. Copies only the maps that change."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.changed: dict[str, Any] = {}
        self.topics: dict[str, _TopicDraft] = {}

    def apply(self, change: Change) -> None:
        key, entry, _ = change
        path = key.split("/")
        if len(path) == 7:
            # The most frequent key by far: "/brokers/topics/<topic>/partitions/<partition>/state".
            states = self.topic(path[3]).states
            if entry is None:
                states[int(path[5])] = None
            else:
                states[int(path[5])] = (records.read_partition_state(key, entry.value), entry.version)
            return
        match path[1:]:
            case ["brokers", "topics", topic]:
                draft = self.topic(topic)
                draft.topic_id, draft.placements = None, ()
                if entry is not None:
                    record = records.read_topic(key, entry.value)
                    draft.topic_id, draft.placements = record.topic_id, record.placements()
            case ["brokers", "ids", broker_id]:
                self.put_broker("brokers", int(broker_id), key, entry, 0 if entry is None else entry.created)
            case ["brokers", "known", broker_id]:
                # It is written together with the registration, so both have the same revision.
                epoch = 0
                if entry is not None:
                    kept = records.kept_epoch(key, entry.value)
                    epoch = entry.modified if kept is None else kept
                self.put_broker("known_brokers", int(broker_id), key, entry, epoch)
            case ["config", "topics", topic]:
                self.topic(topic).configs = {} if entry is None else records.read_config(key, entry.value)
            case ["config", "brokers", broker]:
                configs = self.copy("broker_configs")
                broker = "" if broker == records.DEFAULT_BROKER else broker
                if entry is None:
                    configs.pop(broker, None)
                else:
                    configs[broker] = records.read_config(key, entry.value)
            case ["kafka-acl", kind, name] | ["kafka-acl-extended", "prefixed", kind, name]:
                self.put_acls(key, acl_records.read_pattern(key, kind, name), entry)
            case ["config", ("users" | "clients" | "ips"), *_]:
                configs = self.copy("entity_configs")
                below = key.removeprefix(records.CONFIGS)
                if entry is None:
                    configs.pop(below, None)
                else:
                    configs[below] = records.read_config(key, entry.value)
            case ["controller"]:
                self.changed["controller_id"] = (
                    records.NO_CONTROLLER if entry is None else records.read_controller(key, entry.value)
                )
            case ["controller_epoch"] if entry is not None:
                self.changed["controller_epoch"] = records.read_controller_epoch(key, entry.value)
            case ["feature"] if entry is not None:
                self.changed["features"] = records.read_features(key, entry.value)
                self.changed["features_epoch"] = entry.version + 1
            case ["cluster", "id"] if entry is not None:
                self.changed["cluster_id"] = records.read_cluster_id(key, entry.value)

    def copy(self, name: str) -> dict[Any, Any]:
        if name not in self.changed:
            self.changed[name] = dict(getattr(self.image, name))
        copied: dict[Any, Any] = self.changed[name]
        return copied

    def put_broker(self, name: str, broker_id: int, key: str, entry: Entry | None, epoch: int) -> None:
        brokers = self.copy(name)
        if entry is None:
            brokers.pop(broker_id, None)
        else:
            brokers[broker_id] = BrokerRegistration(broker_id, epoch, *records.read_broker(key, entry.value))

    def put_acls(self, key: str, pattern: ResourcePattern, entry: Entry | None) -> None:
        acls = self.copy("acls")
        if entry is None:
            acls.pop(pattern, None)
        else:
            acls[pattern] = acl_records.read_acls(key, entry.value)

    def topic(self, name: str) -> "_TopicDraft":
        draft = self.topics.get(name)
        if draft is None:
            draft = self.topics[name] = _TopicDraft(self.image.topics.get(name))
        return draft

    def finish(self, version: int) -> ClusterImage:
        if not self.topics and not self.changed:
            return self.image
        if self.topics:
            topics, topic_names = self.copy("topics"), self.copy("topic_names")
            for name, draft in self.topics.items():
                before, after = topics.get(name), draft.finish(name)
                if before is not None and (after is None or after.topic_id != before.topic_id):
                    topic_names.pop(before.topic_id, None)
                if after is None:
                    topics.pop(name, None)
                else:
                    topics[name] = after
                    topic_names[after.topic_id] = name
        return replace(self.image, **self.changed, version=version, memo={})


class _TopicDraft:
    """Builds one topic of the next image: its previous state, and which of its keys changed."""

    __slots__ = ("before", "configs", "placements", "states", "topic_id")

    def __init__(self, before: TopicImage | None) -> None:
        self.before = before
        self.topic_id = None if before is None else before.topic_id
        self.placements: tuple[records.Placement, ...] | None = () if before is None else None
        """None if they are as before."""
        self.configs: Mapping[str, str] = {} if before is None else before.configs
        self.states: dict[int, tuple[records.PartitionState, int] | None] = {}

    def finish(self, name: str) -> TopicImage | None:
        if self.topic_id is None:
            return None
        before = self.before
        known = before.partitions if before is not None and before.topic_id == self.topic_id else ()
        placements = self.placements
        if placements is None:
            # Only some states have changed: an election in a topic with many partitions.
            partitions = list(known)
            for index in self.states:
                if index < len(known):
                    partitions[index] = self.partition(index, known, _placement_of(known[index]))
            return TopicImage(name, self.topic_id, tuple(partitions), self.configs)
        return TopicImage(
            name,
            self.topic_id,
            tuple(self.partition(index, known, placement) for index, placement in enumerate(placements)),
            self.configs,
        )

    def partition(self, index: int, known: tuple[PartitionImage, ...], placement: records.Placement) -> PartitionImage:
        replicas, adding, removing = placement
        changed = self.states.get(index)
        if changed is not None:
            state, version = changed
            return PartitionImage(
                index,
                state.leader,
                state.leader_epoch,
                version,
                replicas,
                state.isr,
                state.elr,
                adding,
                removing,
                state.recovering,
            )
        if index < len(known) and index not in self.states:
            same = known[index]
            return same if _placement_of(same) == placement else _placed(same, placement)
        # Its state is not written yet, or was removed: it has no leader.
        return PartitionImage(index, records.NO_LEADER, 0, -1, replicas, (), (), adding, removing)


def _placement_of(partition: PartitionImage) -> records.Placement:
    return records.Placement(partition.replicas, partition.adding, partition.removing)


def _placed(partition: PartitionImage, placement: records.Placement) -> PartitionImage:
    replicas, adding, removing = placement
    return partition._replace(replicas=replicas, adding=adding, removing=removing)
