"""What handlers work with: the broker's parts, and the context of the request. Pure."""

from typing import TYPE_CHECKING

from ottla.broker.handler_support.transactions.transaction_verification import TransactionVerifier, refuse_transactions
from ottla.errors import ErrorCode, KafkaError
from ottla.net.log_limit import safe_to_log
from ottla.security.resources import NOT_REPORTED

if TYPE_CHECKING:
    from ottla.broker.coordinators import Coordinators
    from ottla.broker.handler_support.fetching.fetch_sessions import FetchSessions
    from ottla.broker.settings.config import BrokerConfig, Settings
    from ottla.clock import Clock, MonotonicClock
    from ottla.coordinator.group.shard import GroupShard
    from ottla.coordinator.runtime import CoordinatorRuntime
    from ottla.coordinator.transaction.shard import TransactionShard
    from ottla.metadata.follower import MetadataFollower
    from ottla.metadata.image import ClusterImage
    from ottla.net.server.server import Connection
    from ottla.replication.broker_peers import BrokerPeers
    from ottla.replication.replica_manager import ReplicaManager
    from ottla.security.authorizer import Authorizer, Decisions
    from ottla.security.principal import Principal
    from ottla.security.quotas import ClientQuotas
    from ottla.security.resources import Operation, Resource, ResourceType


class Services:
    """The broker's parts, as handlers see them."""

    __slots__ = (
        "authorizer",
        "broker_id",
        "clock",
        "config",
        "coordinators",
        "metadata",
        "monotonic",
        "peers",
        "quotas",
        "replicas",
        "sessions",
        "settings",
        "verify_transaction",
    )

    def __init__(
        self,
        *,
        broker_id: int,
        config: "BrokerConfig",
        settings: "Settings",
        metadata: "MetadataFollower",
        replicas: "ReplicaManager",
        sessions: "FetchSessions",
        clock: "Clock",
        monotonic: "MonotonicClock",
        peers: "BrokerPeers | None" = None,
        coordinators: "Coordinators | None" = None,
    ) -> None:
        self.broker_id = broker_id
        self.config = config
        self.settings = settings
        self.metadata = metadata
        self.replicas = replicas
        self.sessions = sessions
        self.clock = clock
        """Wall time, for what is shown or stored."""
        self.monotonic = monotonic
        """For timeouts and ages."""
        self.peers = peers
        """The other brokers."""
        self.coordinators = coordinators
        self.authorizer: Authorizer | None = None
        """Decides by the current ACLs; None if there is no authorizer, and everyone may do everything."""
        self.quotas: ClientQuotas | None = None
        """None while no user and no client id has a quota."""
        self.verify_transaction: TransactionVerifier = refuse_transactions

    @property
    def image(self) -> "ClusterImage":
        """The cluster as this broker currently knows it."""
        return self.metadata.image

    @property
    def groups(self) -> "CoordinatorRuntime[GroupShard]":
        """The group coordinator."""
        if self.coordinators is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no group coordinator")
        return self.coordinators.groups

    @property
    def transactions(self) -> "CoordinatorRuntime[TransactionShard]":
        """The transaction coordinator."""
        if self.coordinators is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no transaction coordinator")
        return self.coordinators.transactions


class Context:
    """Where a request comes from, and in which version."""

    __slots__ = ("api_key", "api_version", "client_id", "connection", "services")

    def __init__(
        self, services: Services, api_version: int, client_id: str, connection: "Connection", api_key: int = 0
    ) -> None:
        self.services = services
        self.api_key = api_key
        self.api_version = api_version
        self.client_id = client_id
        self.connection = connection
        """Identifies the client; handlers never write to it."""

    @property
    def client_host(self) -> str:
        """As Kafka shows it: `/127.0.0.1`."""
        return self.connection.client_host

    @property
    def principal(self) -> "Principal":
        """Who sent the request."""
        return self.connection.principal

    @property
    def requester(self) -> str:
        """Who sent the request from where, for the log: `User:alice at 10.0.0.7`."""
        return safe_to_log(f"{self.principal} at {self.client_host[1:]}")

    @property
    def listener(self) -> str:
        """The name of the listener that the client connected to; it decides which addresses the client gets."""
        return self.connection.listener

    # What the client may do. Without an authorizer that is everything. Denials are logged (`denials.py`). `quietly` is
    # for checks whose denial rejects no request: another permission may suffice, or a list becomes shorter.

    def allows(self, operation: "Operation", resource: "Resource", *, quietly: bool = False) -> bool:
        """Whether the client may do this. `resource` has an exact name: `Resource(ResourceType.TOPIC, "orders")`."""
        authorizer = self.services.authorizer
        if authorizer is None:
            return True
        connection = self.connection
        api_key = NOT_REPORTED if quietly else self.api_key
        return authorizer.allows(connection.principal, connection.client_host[1:], operation, resource, api_key)

    def require(self, operation: "Operation", resource: "Resource") -> None:
        """Raises the error of the resource's type, for example TOPIC_AUTHORIZATION_FAILED, unless it is allowed."""
        if self.services.authorizer is not None and not self.allows(operation, resource):
            from ottla.broker.handler_support.authorization import refusal

            raise refusal(operation, resource, self.principal)

    def allowed(self, operation: "Operation", kind: "ResourceType", *, quietly: bool = False) -> "Decisions | None":
        """What the client may do by the names of resources, for requests that name many: `allowed[name]` is a bool.
        None if there is no authorizer."""
        authorizer = self.services.authorizer
        if authorizer is None:
            return None
        connection = self.connection
        api_key = NOT_REPORTED if quietly else self.api_key
        return authorizer.decisions(connection.principal, connection.client_host[1:], operation, kind, api_key)

    def allows_any(self, operation: "Operation", kind: "ResourceType") -> bool:
        """Whether the client may do this on at least one resource that exists or could exist."""
        authorizer = self.services.authorizer
        if authorizer is None:
            return True
        connection = self.connection
        return authorizer.allows_any(connection.principal, connection.client_host[1:], operation, kind)
