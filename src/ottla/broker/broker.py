"""The composition root: reads the config, builds the parts, wires them, starts and stops them."""

import asyncio
import errno
import logging
import os
import random
import shlex
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.broker.coordinators import Coordinators
from ottla.broker.dispatch import Dispatcher
from ottla.broker.handler_support.fetching.fetch_sessions import FetchSessions
from ottla.broker.handler_support.transactions.transaction_verification import (
    TransactionalAppend,
    TransactionVerifier,
    Verdicts,
)
from ottla.broker.identity import read_identity, write_identity
from ottla.broker.monitoring.health import SERVING, STOPPING, Health
from ottla.broker.monitoring.http_endpoint import HttpEndpoint, Page
from ottla.broker.services import Services
from ottla.broker.settings.authorizer_settings import make_authorizer
from ottla.broker.settings.config import BrokerConfig, Settings
from ottla.broker.settings.listeners import (
    Listener,
    advertised_endpoints,
    check_advertised,
    connection_rates,
    inter_broker_listener,
    parse_listeners,
    security_protocols,
)
from ottla.clock import BootClock, Clock, MonotonicClock, monotonic_ms, system_boot_clock, system_clock
from ottla.errors import OttlaError
from ottla.log.config import TopicConfig
from ottla.log.disk import Disk
from ottla.log.log_directory import LogDirectory, files_for_connections
from ottla.metadata.etcd.location import is_etcd
from ottla.metadata.follower import MetadataFollower
from ottla.metadata.image import NO_IMAGE, BrokerRegistration, ClusterImage
from ottla.metadata.opening import DATABASE_FILE, METADATA_DIRECTORY, access_of, open_store, prepare_metadata_file
from ottla.metadata.sqlite.file_systems import check_local
from ottla.metadata.store import MetadataStore
from ottla.net.server.server import Connection, Disconnect, Limits, Server
from ottla.replication.broker_peers import BrokerPeers
from ottla.replication.replica_manager import ReplicaManager
from ottla.security.protocols import SecurityProtocol
from ottla.types import Endpoint, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.authentication.listeners import Listeners
    from ottla.broker.authentication.scram_users import ImageUsers
    from ottla.broker.monitoring.metrics import Metrics
    from ottla.broker.monitoring.watchdog import Watchdog
    from ottla.broker.throttling import QuotaKeeper
    from ottla.security.authorizer import Authorizer


log = logging.getLogger("ottla.broker")

STOP_GRACE_MS = 3_000
"""How long requests in progress may take to finish when the broker stops."""
LEAVE_TIMEOUT_MS = 2_000
"""How long a broker that stops tries to hand over its leadership."""
REDIRECT_MS = 200
"""How long a broker keeps answering after it handed over: the next request of a client is answered with the new leader.
A client that is disconnected before has to search for the leader, and keeps reconnecting to this broker."""


class Broker:
    """One broker on the running event loop. (`ottla.Broker.embedded()` starts one in a child process.)

    `disk`, `store`, the clocks and the source of random delays can be replaced; simulations do.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk | None = None,
        store: MetadataStore | None = None,
        clock: Clock = system_clock,
        monotonic: MonotonicClock = monotonic_ms,
        boot: BootClock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.config = config
        self.endpoints: dict[str, Endpoint] = {}
        """The advertised addresses by listener name."""
        self.services: Services
        self.server: Server | None = None
        self.dispatcher: Dispatcher
        self.metrics: Metrics | None = None
        self.health = Health(config.node_id, monotonic)
        self.http: HttpEndpoint | None = None
        self._watchdog: Watchdog | None = None
        self._disk = disk or Disk()
        self._store = store
        self._clock = clock
        self._monotonic = monotonic
        self._boot = system_boot_clock() if boot is None else boot
        self._random = rng
        self._directory: LogDirectory | None = None
        self._metadata: MetadataFollower | None = None
        self._peers: BrokerPeers | None = None
        self.listener_security: Listeners | None = None
        """None if all listeners are plain."""
        self._scram_users: ImageUsers | None = None
        self._replicas: ReplicaManager | None = None
        self._coordinators: Coordinators | None = None
        self._quotas: QuotaKeeper | None = None
        self.listeners: dict[str, Listener] = {}
        """Where the broker listens, by listener name."""

    @property
    def address(self) -> str:
        """HOST:PORT of the first listener, for clients on this machine."""
        first = next(iter(self.listeners.values()))
        host = self.endpoints[first.name].host if first.is_wildcard else first.host
        return str(Endpoint(host, first.port))

    @property
    def image(self) -> ClusterImage:
        return self.services.image

    # --- starting -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when the broker serves clients. If it cannot start, it cleans up and raises OttlaError."""
        for notice in self.config.notices:
            log.warning("%s", notice)
        try:
            await self._start()
        except BaseException:
            await self._stop_parts(grace_ms=0)
            raise

    async def _start(self) -> None:
        config = self.config
        listeners = parse_listeners(config)
        check_advertised(config)
        settings = Settings(config)
        authorizer = make_authorizer(config)
        self.listener_security = self._secure(settings)
        self._directory = directory = self._open_directory(config.log_dirs[0])
        if config.metrics_listen is not None:
            await self._start_http(config.metrics_listen)
        # The ports are bound before anything is read from disk, and served when everything is ready.
        self.server = server = Server(_not_ready, _limits(config))
        await self._listen(server, listeners)
        metadata = await self._join_cluster(directory, settings)
        peers = self._connect_peers(metadata)
        replicas = await self._load_replicas(directory, settings, metadata, peers)
        coordinators = await self._open_partitions(metadata, replicas, peers)
        self.services = Services(
            broker_id=config.node_id,
            config=config,
            settings=settings,
            metadata=metadata,
            replicas=replicas,
            sessions=FetchSessions(config.max_incremental_fetch_session_cache_slots),
            clock=self._clock,
            monotonic=self._monotonic,
            peers=peers,
            coordinators=coordinators,
        )
        self.services.verify_transaction = _verify_by(self.services)
        if authorizer is not None:
            self._authorize(authorizer, metadata)
        metadata.subscribe(self._apply_settings)
        self.dispatcher = Dispatcher(self.services, measure_latency=config.metrics_listen is not None)
        metadata.subscribe(self._apply_quotas)
        if self.http is not None:
            self._start_metrics(self.http, server)
        server.handle = self.dispatcher
        if self.listener_security is not None:
            self.listener_security.start()
        await server.start_serving()
        self.health.services, self.health.phase = self.services, SERVING
        log.info("broker %d listens on %s", config.node_id, self.address)

    async def _join_cluster(self, directory: LogDirectory, settings: Settings) -> MetadataFollower:
        """Opens the metadata store and registers this broker."""
        config, clock = self.config, self._clock
        identity = read_identity(self._disk, directory.path, config.node_id)
        store = self._store
        if store is None:
            store = open_store(
                self._metadata_location(directory.path),
                access_of(config),
                session_timeout_ms=config.broker_session_timeout_ms,
                clock=clock,
            )
        metadata = MetadataFollower(store, settings, config=config, clock=clock)
        self.health.phase = "joining the cluster"
        await metadata.start(
            BrokerRegistration(config.node_id, 0, self.endpoints, config.broker_rack),
            previous_epoch=directory.previous_broker_epoch,
            cluster_id=identity.cluster_id,
            has_new_directory=identity.is_new,
        )
        self._metadata = metadata
        write_identity(self._disk, directory.path, identity, metadata.image.cluster_id, config.node_id)
        if self._scram_users is not None:
            self._scram_users.secret = await metadata.changes.scram_secret()
        return metadata

    def _connect_peers(self, metadata: MetadataFollower) -> BrokerPeers:
        """The connections to other brokers; each is opened on first use."""
        self._peers = peers = BrokerPeers(
            self.config.node_id,
            inter_broker_listener(self.config),
            security=None if self.listener_security is None else self.listener_security.peer_security,
            rng=self._random,
        )
        metadata.subscribe(peers.apply)
        return peers

    async def _load_replicas(
        self, directory: LogDirectory, settings: Settings, metadata: MetadataFollower, peers: BrokerPeers
    ) -> ReplicaManager:
        """Loads the logs and reports to the controller how long they are."""
        replicas = ReplicaManager(
            self.config.node_id,
            directory,
            topic_config=lambda topic: settings.topic_config(metadata.image, topic.name),
            config=self.config,
            clock=self._clock,
            boot=self._boot,
            peers=peers,
            alter_partition=metadata.alter_partition,
            give_up=metadata.give_up,
            is_session_confirmed=lambda: metadata.is_session_confirmed,
            rng=self._random,
        )
        self.health.phase = "loading its logs"
        await _load(directory, lambda topic: settings.topic_config(metadata.image, topic))
        await metadata.report_logs(lambda: _log_ends(directory))
        replicas.start()
        self._replicas = replicas
        return replicas

    async def _open_partitions(
        self, metadata: MetadataFollower, replicas: ReplicaManager, peers: BrokerPeers
    ) -> Coordinators:
        """Returns when replicas and coordinators have what the metadata says."""
        self._coordinators = coordinators = Coordinators(
            self.config, metadata=metadata, replicas=replicas, clock=self._clock, peers=peers
        )
        replicas.when_applied(coordinators.apply)
        metadata.subscribe(replicas.apply)
        self.health.phase = "opening its partitions"
        await metadata.applied()
        return coordinators

    def _authorize(self, authorizer: "Authorizer", metadata: MetadataFollower) -> None:
        """Checks every request from now on against the ACLs."""
        from ottla.broker.denials import Denials

        authorizer.on_denied = Denials().report
        self.services.authorizer = authorizer
        everyone = authorizer.allow_everyone_if_no_acl_found
        if not (everyone or authorizer.super_users or metadata.image.acls):
            log.warning("authorizer: there are neither super users nor ACLs, so nobody can add any; set super.users")
        metadata.subscribe(self._apply_acls)

    def _apply_settings(self, image: ClusterImage) -> None:
        """Puts settings that were changed at run time into effect. Topics follow the image themselves."""
        services = self.services
        config = services.settings.broker_config(image)
        if config is not services.config and self.server is not None:
            services.config = config
            services.replicas.reconfigure(config)
            self.server.limits = _limits(config)
        if self.listener_security is not None:
            self.listener_security.reload(services.settings.texts(image))

    def _apply_quotas(self, image: ClusterImage) -> None:
        """Most clusters have no quotas; their code is imported with the first one."""
        if self._quotas is None:
            services = self.services
            rates = connection_rates(services.config, services.settings.texts(image))
            if self.server is None or not (image.entity_configs or rates):
                return
            from ottla.broker.throttling import QuotaKeeper

            self._quotas = QuotaKeeper(self.dispatcher, self.server)
        self._quotas.apply(image)

    def _apply_acls(self, image: ClusterImage) -> None:
        """Applies the ACLs of this image to requests from now on."""
        authorizer = self.services.authorizer
        if authorizer is not None and image.acls is not authorizer.acls:
            self.services.authorizer = authorizer.with_acls(image.acls)

    def _secure(self, settings: Settings) -> "Listeners | None":
        """The security of the listeners; None if all of them are plain. Raises ConfigError."""
        config = self.config
        protocols = security_protocols(config)
        # With the first listener if none is named: the others are expected to have the same ones.
        between_brokers = inter_broker_listener(config) or next(iter(protocols))
        if set(protocols.values()) == {SecurityProtocol.PLAINTEXT}:
            return None
        from ottla.broker.authentication.listeners import Listeners
        from ottla.broker.authentication.scram_users import ImageUsers

        self._scram_users = ImageUsers(lambda: self.image)
        security = Listeners(
            protocols,
            settings.texts(NO_IMAGE),
            dispatch=lambda frame, connection: self.dispatcher(frame, connection),
            clock=self._clock,
            monotonic=self._monotonic,
            scram_users=self._scram_users,
        )
        security.secure_peers(between_brokers, protocols[between_brokers])
        settings.check_security = security.check
        return security

    def _metadata_location(self, data: str) -> str:
        """The address in etcd, or the file of the metadata, whose directory exists when this returns."""
        if self.config.metadata is not None and is_etcd(self.config.metadata):
            return self.config.metadata
        path = self.config.metadata or os.path.join(data, METADATA_DIRECTORY, DATABASE_FILE)
        if self.config.metadata:
            check_local(path)
        return prepare_metadata_file(path, self._disk.make_directories)

    def _open_directory(self, path: str) -> LogDirectory:
        try:
            directory = LogDirectory.open(
                path, disk=self._disk, clock=self._clock, monotonic=self._monotonic, boot_id=self._boot.boot_id
            )
        except OSError as error:
            raise OttlaError(
                f"cannot use {path} as data directory: {error.strerror or error}",
                "Choose a directory you can write to with --data DIR.",
            ) from None
        if self._disk.is_open_to_others(directory.path):
            log.warning(
                "data directory %s: other users of this machine can read it; make it private with: chmod -R go= %s",
                directory.path,
                shlex.quote(directory.path),
            )
        return directory

    async def _listen(self, server: Server, listeners: list[Listener]) -> None:
        for name, host, port in listeners:
            try:
                bound = await server.listen(
                    host,
                    port,
                    name,
                    security=None if self.listener_security is None else self.listener_security.security.get(name),
                    backlog=self.config.socket_listen_backlog_size,
                    start_serving=False,
                )
            except OSError as error:
                raise _cannot_listen(f"{host}:{port}", error) from None
            self.listeners[name] = Listener(name, host, bound)
        self.endpoints = advertised_endpoints(self.config, self.listeners, _host_name)

    async def _start_http(self, address: str) -> None:
        """Before anything slow: a broker that loads its logs is alive, and must report so."""
        self.http = http = HttpEndpoint()
        http.pages |= self.health.pages()
        try:
            await http.listen(address)
        except OSError as error:
            raise _cannot_listen(address, error, "--metrics") from None

    def _start_metrics(self, http: "HttpEndpoint", server: Server) -> None:
        from ottla.broker.monitoring import metrics

        try:
            self.metrics = metrics.Metrics(self.dispatcher, server, self.services)
        except ImportError:
            log.warning("%s; /healthz and /readyz are served without it", metrics.MISSING_LIBRARY)
            missing = Page(metrics.MISSING_LIBRARY.encode() + b"\n", status=b"501 Not Implemented")
            http.pages[b"/metrics"] = lambda: missing
        else:
            self.metrics.security = self.listener_security
            http.pages[b"/metrics"] = self.metrics.page

    def watch_event_loop(self) -> None:
        """Logs steps of the event loop that take too long. Not part of `start`: simulated time has no slow steps."""
        from ottla.broker.monitoring.watchdog import Watchdog

        config, dispatcher = self.config, self.dispatcher
        self._watchdog = Watchdog(
            config.slow_step_ms,
            config.slow_step_log_interval_ms,
            lambda: sum(route.requests for route in dispatcher.routes.values()),
            f"broker {config.node_id}",
        )
        self._watchdog.start()
        if self.metrics is not None:
            self.metrics.watchdog = self._watchdog

    # --- stopping -----------------------------------------------------------------------------------------

    async def stop(self, *, hand_over: bool = True) -> None:
        """Accepts no more requests, answers those in progress, writes everything to disk and leaves the cluster.

        Leadership is handed over first, while this broker still serves: clients are redirected to the new leaders.
        Without `hand_over` nobody is elected instead: for brokers that are all stopped together.
        """
        log.info("broker %d is stopping", self.config.node_id)
        self.health.phase = STOPPING
        if self._metadata is not None:
            if hand_over:
                moved = await self._metadata.leave(LEAVE_TIMEOUT_MS)
                if moved and self.server is not None and self.server.connections:
                    await asyncio.sleep(REDIRECT_MS / 1000)
            else:
                self._metadata.freeze()
        await self._stop_parts(STOP_GRACE_MS)
        log.info("broker %d has stopped", self.config.node_id)

    async def _stop_parts(self, grace_ms: int) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        if self.http is not None:
            self.http.close()
        if self.server is not None:
            closing = asyncio.ensure_future(self.server.close(grace_ms))
            # First no more requests are accepted. Then fetches that wait for records are answered.
            await asyncio.sleep(0)
            if self._replicas is not None:
                self._replicas.begin_stop()
            if self._coordinators is not None:
                await self._coordinators.stop()
            await closing
        if self.listener_security is not None:
            await self.listener_security.stop()
        if self._peers is not None:
            await self._peers.close()
        stops = [part.stop for part in (self._metadata, self._replicas) if part is not None]
        if self._replicas is None:
            stops.append(self._close_directory)
        for stop in stops:
            try:
                await stop()
            except Exception:
                # The other parts must still be stopped: they have data to write.
                log.exception("broker %d: a part did not stop cleanly", self.config.node_id)
        self.server = self._metadata = self._peers = self._replicas = self._directory = None
        self.metrics = self._watchdog = self.http = None

    async def _close_directory(self) -> None:
        if self._directory is not None:
            self._directory.close()


def _log_ends(directory: LogDirectory) -> dict[TopicPartition, tuple[int, int]]:
    """The last leader epoch and the end offset of each log."""
    return {
        partition: (each.leader_epochs.epoch_for_offset(each.log_end_offset - 1), each.log_end_offset)
        for partition, each in directory.logs.items()
    }


async def _load(directory: LogDirectory, config_of: Callable[[str], TopicConfig]) -> None:
    """Opens the logs in a thread: after a crash that can take long, and the metadata session must stay alive."""
    loading = asyncio.get_running_loop().run_in_executor(None, directory.load, config_of)
    try:
        await asyncio.shield(loading)
    except asyncio.CancelledError:
        # The directory must not be closed while it is loaded.
        await asyncio.wait([loading])
        raise


def _verify_by(services: Services) -> TransactionVerifier:
    """Asks the transaction coordinator, whose code is imported with the first transaction."""

    def verify(append: TransactionalAppend) -> Verdicts | Awaitable[Verdicts]:
        from ottla.broker.handler_support.transactions.transaction_requests import verifier

        services.verify_transaction = verifier(services)
        return services.verify_transaction(append)

    return verify


def _not_ready(frame: bytes | memoryview, connection: Connection) -> None:
    raise Disconnect("the broker is still starting")


def _limits(config: BrokerConfig) -> Limits:
    limits = Limits(
        max_request_bytes=config.socket_request_max_bytes,
        max_idle_ms=config.connections_max_idle_ms,
        max_connections=config.max_connections,
        max_connections_per_host=config.max_connections_per_ip,
        max_unread_bytes=config.unread_responses_max_bytes,
        max_incomplete_bytes=max(config.incomplete_requests_max_bytes, config.socket_request_max_bytes),
        max_newcomers=config.max_unauthenticated_connections,
        newcomer_timeout_ms=config.authentication_timeout_ms,
    )
    possible = files_for_connections()
    if possible < limits.max_connections:
        # Without a free file descriptor no log can be opened, and accepting connections fails.
        limits = limits._replace(max_connections=possible, max_connections_reason="limit from open files")
    return limits


def _cannot_listen(address: str, error: OSError, option: str = "--listen") -> OttlaError:
    if error.errno == errno.EADDRINUSE:
        hint = f"Stop the process that listens there, or choose another port with {option} HOST:PORT (0: a free one)."
        return OttlaError(f"cannot listen on {address}: the port is in use", hint)
    hints = {
        errno.EACCES: f"Ports below 1024 require privileges; choose a higher one with {option} HOST:PORT.",
        errno.EADDRNOTAVAIL: f"This machine does not have that address; choose another with {option} HOST:PORT.",
    }
    hint = hints.get(error.errno or 0, f"Choose another address with {option} HOST:PORT.")
    return OttlaError(f"cannot listen on {address}: {error.strerror or error}", hint)


def _host_name() -> str:
    """The host name of this machine, or localhost if it cannot be resolved."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        log.warning(
            "host name %s: cannot be resolved; advertising localhost (set advertised.listeners to change it)", name
        )
        return "localhost"
    return name
