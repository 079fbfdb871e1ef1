"""AsyncAdmin: one method per admin call. Each call is a function in this folder, over the admin's network."""

import random
from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Self, Unpack

from ottla.client.admin import acls as acl_calls
from ottla.client.admin import cluster as cluster_calls
from ottla.client.admin import configs as config_calls
from ottla.client.admin import group_offsets as group_offset_calls
from ottla.client.admin import groups as group_calls
from ottla.client.admin import open_transactions as open_transaction_calls
from ottla.client.admin import prepared as prepared_calls
from ottla.client.admin import quotas as quota_calls
from ottla.client.admin import replicas as replica_calls
from ottla.client.admin import topics as topic_calls
from ottla.client.admin import transactions as transaction_calls
from ottla.client.admin import users as user_calls
from ottla.client.admin.group_model import GroupDescription, GroupListing
from ottla.client.admin.transaction_model import (
    FencedProducer,
    HangingTransaction,
    OpenTransaction,
    PreparedTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from ottla.client.core.arguments import ByPartition, PartitionLike, Timeout, by_partition
from ottla.client.core.model import (
    ApiVersionRange,
    ClientQuota,
    ClusterDescription,
    CommittedOffset,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    Feature,
    LogDirectory,
    NewTopic,
    Node,
    OffsetAndTimestamp,
    QuorumDescription,
    Reassignment,
    ScramCredentialInfo,
    TopicDescription,
)
from ottla.client.core.network import Network
from ottla.client.core.offset_lookup import list_offsets
from ottla.client.core.setting_types import AdminSettings
from ottla.client.core.settings import AdminConfig, build
from ottla.clock import Clock, system_clock
from ottla.errors import KafkaError
from ottla.security.acls import AclBinding, AclBindingFilter
from ottla.types import TopicPartition

VIEW_IDLE_MS = 300_000
"""How long the metadata of a topic is kept up to date after the last call about it."""


class AsyncAdmin:
    """Describes and changes the cluster. Errors are KafkaError, with the broker's error code and message.

    >>> async with AsyncAdmin({"bootstrap.servers": "127.0.0.1:9092"}) as admin:
    ...     await admin.create_topic("orders", partitions=3)
    ...     for topic in await admin.list_topics():
    ...         print(topic.name, len(topic.partitions))
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        clock: Clock = system_clock,
        rng: random.Random | None = None,
        **keywords: Unpack[AdminSettings],
    ) -> None:
        self.config = build(AdminConfig, settings, keywords)
        self._network = Network(self.config, max_idle_ms=VIEW_IDLE_MS, clock=clock, rng=rng)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._network.close()

    # --- topics -------------------------------------------------------------------------------------------

    async def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Creates topics, and waits until all brokers know them. Raises for the first one that could not be created.

        >>> await admin.create_topics([NewTopic("a", 3), NewTopic("b", configs={"cleanup.policy": "compact"})])
        """
        return await topic_calls.create_topics(self._network, topics, validate_only=validate_only)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> CreatedTopic:
        """Creates one topic, and waits until all brokers know it. -1 uses the broker's default."""
        created = await self.create_topics([NewTopic(name, partitions, replication_factor, configs or {})])
        return created[0]

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicDescription]:
        """All topics, sorted by name."""
        return await topic_calls.list_topics(self._network, include_internal=include_internal)

    async def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        """Topics with their partitions, in the order of `names`.

        Raises UNKNOWN_TOPIC_OR_PARTITION if one does not exist.
        """
        return await topic_calls.describe_topics(self._network, names)

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Deletes topics with all their records. Raises for the first one that could not be deleted."""
        await topic_calls.delete_topics(self._network, names)

    async def create_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Adds partitions to topics, up to a total number for each.

        >>> await admin.create_partitions({"orders": 6})
        """
        await topic_calls.create_partitions(self._network, totals, validate_only=validate_only)

    # --- configs ------------------------------------------------------------------------------------------

    async def describe_configs(
        self, kind: str, name: str, *, names: Iterable[str] | None = None, with_documentation: bool = False
    ) -> list[ConfigEntry]:
        """The settings of a topic ("topic", its name) or a broker ("broker", its id); only `names`, if passed.

        >>> await admin.describe_configs("topic", "orders")
        """
        return await config_calls.describe_configs(
            self._network, kind, name, names=names, with_documentation=with_documentation
        )

    async def alter_configs(
        self, kind: str, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Changes these settings and keeps the others. None resets a setting to its default.

        >>> await admin.alter_configs("topic", "orders", {"retention.ms": "60000", "cleanup.policy": None})
        """
        await config_calls.alter_configs(self._network, kind, name, changes, validate_only=validate_only)

    # --- quotas -------------------------------------------------------------------------------------------

    async def describe_client_quotas(
        self, entity: Mapping[str, str | EllipsisType | None] | None = None, *, strict: bool = False
    ) -> list[ClientQuota]:
        """The quotas of all users, client ids and addresses, or of those that match `entity`.

        `entity` maps each type to filter by to a name, to None for the default, or to `...` for any name. With
        `strict`, entities that also have another type are excluded.

        >>> await admin.describe_client_quotas({"user": "alice", "client-id": ...})
        """
        return await quota_calls.describe_client_quotas(self._network, entity or {}, strict=strict)

    async def alter_client_quotas(
        self, entity: Mapping[str, str | None], changes: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Sets quotas of a user, a client id, both, or an address. A value of None removes a quota; a name of None
        means the default.

        >>> await admin.alter_client_quotas({"user": "alice"}, {"producer_byte_rate": 10_000_000})
        """
        await quota_calls.alter_client_quotas(self._network, entity, changes, validate_only=validate_only)

    async def list_config_resources(self, kinds: Iterable[str] = ()) -> list[ConfigResource]:
        """The resources that have settings: topics, brokers and so on; only those of `kinds`, if passed.

        >>> await admin.list_config_resources(["topic"])
        """
        return await config_calls.list_config_resources(self._network, kinds)

    # --- users --------------------------------------------------------------------------------------------

    async def upsert_user_scram_credential(
        self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-512", iterations: int = 4096
    ) -> None:
        """Adds a user that logs in with SCRAM, or changes its password. The password is not sent to the broker.

        >>> await admin.upsert_user_scram_credential("alice", "a good password")
        """
        await user_calls.upsert_user_scram_credential(self._network, user, password, mechanism, iterations)

    async def delete_user_scram_credential(self, user: str, *, mechanism: str = "SCRAM-SHA-512") -> None:
        """Deletes a user's credential for this mechanism. Raises RESOURCE_NOT_FOUND if there is none.

        >>> await admin.delete_user_scram_credential("alice")
        """
        await user_calls.delete_user_scram_credential(self._network, user, mechanism)

    async def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> dict[str, list[ScramCredentialInfo]]:
        """The users that log in with SCRAM, without their secrets; only those of `users`, if passed.

        >>> await admin.describe_user_scram_credentials(["alice"])
        {'alice': [ScramCredentialInfo(mechanism='SCRAM-SHA-512', iterations=4096)]}
        """
        return await user_calls.describe_user_scram_credentials(self._network, users)

    # --- records and offsets ------------------------------------------------------------------------------

    async def delete_records(self, before: ByPartition[int]) -> dict[TopicPartition, int]:
        """Deletes the records below an offset (-1: all that are committed). Returns the new first offsets.

        >>> await admin.delete_records({TopicPartition("orders", 0): 1000})
        """
        return await topic_calls.delete_records(self._network, before)

    async def list_offsets(
        self, wanted: ByPartition[int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after a timestamp, or EARLIEST, LATEST, MAX_TIMESTAMP; None if there is none.

        >>> await admin.list_offsets({TopicPartition("orders", 0): LATEST})
        """
        asked = by_partition(wanted, "wanted", '{("orders", 0): LATEST}')
        return await list_offsets(self._network, asked, isolation_level=isolation_level)

    async def count_records(self, names: Sequence[str]) -> dict[str, int]:
        """The number of offsets between each topic's first and last record (transaction markers and gaps included).

        Partitions without a leader count as empty.
        """
        return await topic_calls.count_records(self._network, names)

    # --- the cluster --------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """The brokers, the controller and the cluster id."""
        return await cluster_calls.describe_cluster(self._network)

    async def describe_api_versions(self, node_id: int | None = None) -> list[ApiVersionRange]:
        """The APIs that a broker (any, if None) serves, and their versions."""
        return await cluster_calls.describe_api_versions(self._network, node_id)

    async def describe_features(self, node_id: int | None = None) -> list[Feature]:
        """The features that a broker (any, if None) supports, and the levels that the cluster has finalized.

        >>> {f.name: f.finalized for f in await admin.describe_features()}
        {'transaction.version': 2, …}
        """
        return await cluster_calls.describe_features(self._network, node_id)

    async def update_features(
        self, levels: Mapping[str, int], *, allow_downgrade: bool = False, validate_only: bool = False
    ) -> None:
        """Sets the finalized levels of features atomically. A lower level than the current one is rejected unless
        `allow_downgrade` is set; a downgrade that would lose data is always rejected.

        >>> await admin.update_features({"transaction.version": 1}, allow_downgrade=True)
        """
        await cluster_calls.update_features(
            self._network, levels, allow_downgrade=allow_downgrade, validate_only=validate_only
        )

    async def describe_log_dirs(self, node_ids: Sequence[int] | None = None) -> list[LogDirectory]:
        """The data directories of brokers (all, if None) and the size of each replica in them."""
        return await cluster_calls.describe_log_dirs(self._network, node_ids)

    # --- replicas -----------------------------------------------------------------------------------------

    async def elect_leaders(
        self, partitions: Iterable[PartitionLike] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, KafkaError | None]:
        """Makes the preferred (first) replica of each partition the leader; of all partitions, if None.

        Returns the partitions with a new leader (None) and those where the election failed, with the error. `unclean`
        elects a replica that is not in sync, for partitions without a leader: records may be lost.

        >>> await admin.elect_leaders([("orders", 0)])
        """
        return await replica_calls.elect_leaders(self._network, partitions, unclean=unclean)

    async def alter_partition_reassignments(
        self, replicas: ByPartition[Sequence[int] | None], *, allow_replication_factor_change: bool = True
    ) -> None:
        """Starts to move partitions to these brokers, the preferred leader first. None cancels a move.

        Returns before the data is copied; see `list_partition_reassignments`.

        >>> await admin.alter_partition_reassignments({("orders", 0): [1, 2, 3]})
        """
        await replica_calls.alter_partition_reassignments(
            self._network, replicas, allow_replication_factor_change=allow_replication_factor_change
        )

    async def list_partition_reassignments(
        self, partitions: Iterable[PartitionLike] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The partitions that are being moved; only of `partitions`, if passed."""
        return await replica_calls.list_partition_reassignments(self._network, partitions)

    async def describe_quorum(self) -> QuorumDescription:
        """The controller, its epoch, and the brokers that can become the controller."""
        return await replica_calls.describe_quorum(self._network)

    async def unregister_broker(self, broker_id: int) -> None:
        """Removes a stopped broker from the cluster for good. Move its partitions away first."""
        await replica_calls.unregister_broker(self._network, broker_id)

    # --- ACLs ---------------------------------------------------------------------------------------------

    async def create_acls(self, acls: Sequence[AclBinding]) -> None:
        """Adds ACLs; existing ones are kept. Raises for the first one that cannot be added.

        >>> orders = ResourcePattern(ResourceType.TOPIC, "orders")
        >>> entry = AccessControlEntry("User:alice", "*", Operation.READ, PermissionType.ALLOW)
        >>> await admin.create_acls([AclBinding(orders, entry)])
        """
        await acl_calls.create_acls(self._network, acls)

    async def describe_acls(self, matching: AclBindingFilter | None = None) -> list[AclBinding]:
        """The ACLs that match a filter; by default all of them. SECURITY_DISABLED if the broker has no authorizer."""
        return await acl_calls.describe_acls(self._network, AclBindingFilter() if matching is None else matching)

    async def delete_acls(self, filters: Sequence[AclBindingFilter]) -> list[AclBinding]:
        """Deletes the ACLs that match one of the filters, and returns them."""
        return await acl_calls.delete_acls(self._network, filters)

    # --- groups -------------------------------------------------------------------------------------------

    async def find_coordinators(self, group_ids: Sequence[str]) -> dict[str, Node]:
        """The broker that coordinates each group, whether or not the group exists."""
        return await group_calls.find_coordinators(self._network, group_ids)

    async def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """All groups, sorted by name; only those in `states` (Stable, Empty …) and of `types` (classic …), if passed.

        >>> await admin.list_groups(states=["Stable"])
        """
        return await group_calls.list_groups(self._network, states=states, types=types)

    async def describe_groups(self, group_ids: Sequence[str]) -> list[GroupDescription]:
        """Groups with their members, in the order of `group_ids`. Raises GROUP_ID_NOT_FOUND if one does not exist."""
        return await group_calls.describe_groups(self._network, group_ids)

    async def delete_groups(self, group_ids: Sequence[str]) -> None:
        """Deletes groups without members, and their offsets.

        Raises for the first one that could not be deleted; the others are still deleted.
        """
        await group_calls.delete_groups(self._network, group_ids)

    async def remove_members(
        self,
        group_id: str,
        *,
        member_ids: Sequence[str] = (),
        instance_ids: Sequence[str] = (),
        reason: str = "removed by an administrator",
    ) -> None:
        """Removes members by member id or, for static members, by `group.instance.id`; all members if neither is set.

        A consumer that is still running joins the group again.
        """
        await group_calls.remove_members(
            self._network, group_id, member_ids=member_ids, instance_ids=instance_ids, reason=reason
        )

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[PartitionLike] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """The committed offset of each partition that has one; only of `partitions`, if passed.

        With `require_stable` it waits for open transactions that are about to commit offsets.
        """
        return await group_offset_calls.list_group_offsets(
            self._network, group_id, partitions, require_stable=require_stable
        )

    async def alter_group_offsets(self, group_id: str, offsets: ByPartition[int | CommittedOffset]) -> None:
        """Commits offsets for a group without members. Raises UNKNOWN_MEMBER_ID while it has any.

        >>> await admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 42})
        """
        await group_offset_calls.alter_group_offsets(self._network, group_id, offsets)

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[PartitionLike]) -> None:
        """Deletes committed offsets. Raises GROUP_SUBSCRIBED_TO_TOPIC if a member consumes the topic."""
        await group_offset_calls.delete_group_offsets(self._network, group_id, partitions)

    # --- transactions -------------------------------------------------------------------------------------

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """All transactional ids, sorted by name; only those that pass the filters.

        >>> await admin.list_transactions(states=["Ongoing"], longer_than_ms=60_000)
        """
        return await transaction_calls.list_transactions(
            self._network, states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
        )

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[TransactionDescription]:
        """Transactions in the order of `transactional_ids`.

        Raises TRANSACTIONAL_ID_NOT_FOUND if one does not exist.
        """
        return await transaction_calls.describe_transactions(self._network, transactional_ids)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerState]]:
        """The idempotent and transactional producers of each partition, as its leader knows them."""
        return await transaction_calls.describe_producers(self._network, partitions)

    async def end_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> None:
        """Commits or aborts an open transaction from outside its producer, by its ids and epoch.

        The producer cannot continue the transaction. Raises PRODUCER_FENCED or INVALID_TXN_STATE if another
        transaction is open by now, or this one has ended already.
        """
        await transaction_calls.end_transaction(
            self._network, transactional_id, producer_id, producer_epoch, commit=commit
        )

    async def fence_producers(self, transactional_ids: Sequence[str]) -> dict[str, FencedProducer]:
        """Fences the current producers of these transactional ids and aborts their open transactions.

        >>> await admin.fence_producers(["biller-1"])
        """
        return await transaction_calls.fence_producers(self._network, transactional_ids)

    async def find_open_transactions(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[OpenTransaction]]:
        """The open transactions of each partition, oldest first. The oldest one blocks read_committed consumers."""
        return await open_transaction_calls.find_open_transactions(self._network, partitions)

    async def find_hanging_transactions(self, partitions: Iterable[TopicPartition]) -> list[HangingTransaction]:
        """Open transactions that no coordinator will ever end.

        Every partition is checked twice, so that a transaction that is just completing is not reported.
        """
        return await open_transaction_calls.find_hanging_transactions(self._network, partitions)

    async def abort_in_partition(self, partition: TopicPartition, producer: ProducerState) -> None:
        """Aborts a hanging transaction in one partition, by an ABORT marker that bypasses the coordinator.

        Never use it for a transaction that a coordinator tracks: its other partitions would stay open.
        """
        await open_transaction_calls.abort_in_partition(self._network, partition, producer)

    async def commit_prepared(
        self,
        prepared: PreparedTransaction,
        *,
        offsets: Mapping[Any, Any] | None = None,
        group: Any = None,
        timeout_ms: Timeout | None = None,
    ) -> None:
        """Commits what `producer.prepare_transaction()` left open. Idempotent, unless `offsets` are passed.

        With `offsets` and `group` these offsets are committed as part of the transaction, so that they later show
        whether it was committed. Read them before a retry: a transaction that has ended accepts no offsets.

        Raises PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING or INVALID_TXN_STATE if another instance or the timeout
        has ended the transaction.

        >>> await admin.commit_prepared(prepared, offsets={("batches", 0): 7}, group="my-sink")
        """
        await prepared_calls.complete_prepared(
            self._network, prepared, commit=True, offsets=offsets, group=group, timeout_ms=timeout_ms
        )

    async def abort_prepared(self, prepared: PreparedTransaction, *, timeout_ms: Timeout | None = None) -> None:
        """Aborts what `producer.prepare_transaction()` left open. Idempotent."""
        await prepared_calls.complete_prepared(self._network, prepared, commit=False, timeout_ms=timeout_ms)
