"""Metadata v0-13: brokers, topics, partitions and their leaders, with the addresses of the client's listener.

v0   an empty list requests all topics
v1   null requests all topics; racks, controller, internal topics
v2   cluster id (KIP-78)
v4   the client can decline auto-creation
v5   offline replicas (KIP-112)
v7   leader epoch (KIP-320)
v8   authorized operations (KIP-430)
v9   flexible (KIP-482)
v10  topic ids (KIP-516)
v11  no authorized operations of the cluster (KIP-700)
v12  lookup by topic id (KIP-516)
v13  an error code for the whole response (KIP-1102)

A topic that the request creates is UNKNOWN_TOPIC_OR_PARTITION in the response, in every version, and exists when the
client retries. As in Kafka: a client that has just deleted a topic must not find it in the next response.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ottla.broker.dispatch import handles
from ottla.broker.handler_support import mutation_quota
from ottla.broker.handler_support.authorized_operations import (
    NOT_REQUESTED,
    authorized_cluster_operations,
    authorized_operations,
)
from ottla.broker.handler_support.elections_pending import elected
from ottla.broker.handler_support.later import Later
from ottla.broker.handler_support.sliced_response import SLICE, SlicedResponse, in_slices
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.changes.topic_changes import missing_topic_error
from ottla.metadata.image import BrokerRegistration, ClusterImage, PartitionImage, TopicImage
from ottla.metadata.records import NO_LEADER
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.security.resources import CLUSTER, Operation, Resource, ResourceType
from ottla.types import INTERNAL_TOPICS, ZERO_UUID

Broker = MetadataResponse.MetadataResponseBroker
Topic = MetadataResponse.MetadataResponseTopic
Partition = MetadataResponse.MetadataResponsePartition
Response = MetadataResponse | Later[SlicedResponse] | Later[MetadataResponse | SlicedResponse]
T = TypeVar("T")

_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_ANY_TOPIC = Resource(ResourceType.TOPIC, "")


@handles(ApiKey.METADATA)
def metadata(request: MetadataRequest, context: Context) -> Response:
    names = _names(request)
    if context.services.metadata.awaits_elections(names):
        return Later(lambda: _after_election(request, context, names))
    return _metadata(request, context)


def _names(request: MetadataRequest) -> list[str]:
    """The topics requested by name, which is how clients look up leaders."""
    return [topic.name for topic in request.topics or () if topic.name is not None]


async def _after_election(
    request: MetadataRequest, context: Context, names: list[str]
) -> MetadataResponse | SlicedResponse:
    await elected(context.services, names)
    response = _metadata(request, context)
    return response if isinstance(response, MetadataResponse) else await response


def _metadata(request: MetadataRequest, context: Context) -> Response:
    asked = request.topics
    if asked is None or (context.api_version == 0 and not asked):
        return _all(request, context)
    _check_form(asked, context.api_version)
    image = context.services.image
    missing = [
        topic.name
        for topic in asked
        if topic.name is not None and topic.topic_id == ZERO_UUID and topic.name not in image.topics
    ]
    errors: dict[str | None, ErrorCode] = {}
    throttle_ms = 0
    if missing and request.allow_auto_topic_creation and context.services.config.auto_create_topics_enable:
        if context.services.authorizer is not None:
            missing, errors = _split_by_access(missing, context)
        created, throttle_ms = mutation_quota.start_creating(context, missing)
        errors |= created
    return _answer(request, context, errors, throttle_ms)


def _all(request: MetadataRequest, context: Context) -> Response:
    view = View.of(request, context)
    describable = context.allowed(Operation.DESCRIBE, ResourceType.TOPIC, quietly=True)
    if describable is None:
        return _respond(request, context, list(view.image.topics), view.topic)
    shown = [name for name in view.image.topics if describable[name]]
    return _respond(request, context, shown, lambda name: _with_operations(view.topic(name), request, context))


def _split_by_access(missing: list[str], context: Context) -> tuple[list[str], dict[str | None, ErrorCode]]:
    """The topics that the client may create, and the errors of those that it knows to be missing but may not."""
    describable = context.allowed(Operation.DESCRIBE, ResourceType.TOPIC)
    creatable = context.allowed(Operation.CREATE, ResourceType.TOPIC)
    assert describable is not None
    assert creatable is not None
    described = [name for name in missing if describable[name]]
    if context.allows(Operation.CREATE, CLUSTER, quietly=True):
        return described, {}
    refused = [name for name in described if not creatable[name]]
    return [name for name in described if creatable[name]], dict.fromkeys(refused, _REFUSED)


def _with_operations(topic: Topic, request: MetadataRequest, context: Context) -> Topic:
    """The topic with what this client may do. `topic` itself is shared by the responses to all clients."""
    if not request.include_topic_authorized_operations or topic.name is None:
        return topic
    return Topic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=topic.partitions,
        topic_authorized_operations=authorized_operations(context, Resource(ResourceType.TOPIC, topic.name)),
    )


def _check_form(asked: Sequence[MetadataRequest.MetadataRequestTopic], version: int) -> None:
    for topic in asked:
        if topic.topic_id != ZERO_UUID:
            if version < 12:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Topic IDs are not supported in requests for version {version}"
                )
        elif topic.name is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")


def _answer(
    request: MetadataRequest, context: Context, creation_errors: dict[str | None, ErrorCode], throttle_ms: int
) -> Response:
    view, describable = View.of(request, context), context.allowed(Operation.DESCRIBE, ResourceType.TOPIC)

    def find(topic: MetadataRequest.MetadataRequestTopic) -> Topic:
        if describable is None:
            return _find(topic, view, creation_errors)
        is_by_id = topic.topic_id != ZERO_UUID
        name = view.image.topic_names.get(topic.topic_id) if is_by_id else topic.name
        if name is not None and not describable[name]:
            # Does not even reveal whether it exists.
            return Topic(error_code=_REFUSED, name=None if is_by_id else name, topic_id=topic.topic_id)
        found = _find(topic, view, creation_errors)
        return found if found.error_code == _REFUSED else _with_operations(found, request, context)

    asked = {topic.topic_id if topic.topic_id != ZERO_UUID else topic.name: topic for topic in request.topics or ()}
    return _respond(request, context, list(asked.values()), find, throttle_ms)


def _find(
    asked: MetadataRequest.MetadataRequestTopic, view: "View", creation_errors: dict[str | None, ErrorCode]
) -> Topic:
    if asked.topic_id != ZERO_UUID:
        topic = view.image.find_topic_by_id(asked.topic_id)
        if topic is None:
            return Topic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
        return view.topic(topic.name)
    name = asked.name
    assert name is not None
    if name in view.image.topics:
        return view.topic(name)
    error = creation_errors.get(name, ErrorCode.NONE)
    if error == ErrorCode.NONE:
        # Creation is not allowed, or has just started.
        error = missing_topic_error(name)
    return Topic(
        error_code=error,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=view.topic_operations,
    )


def _respond(
    request: MetadataRequest, context: Context, asked: list[T], describe: Callable[[T], Topic], throttle_ms: int = 0
) -> Response:
    image = context.services.image
    cluster_operations = NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        cluster_operations = authorized_cluster_operations(context)
    brokers = View.of(request, context).brokers
    if lost := _lost_brokers(context):
        brokers = brokers + lost
    response = MetadataResponse(
        throttle_time_ms=throttle_ms,
        brokers=brokers,
        cluster_id=image.cluster_id,
        controller_id=image.shown_controller_id,
        cluster_authorized_operations=cluster_operations,
    )
    if len(asked) <= SLICE:
        response.topics = [describe(topic) for topic in asked]
        return response
    return Later(lambda: _in_slices(response, context.api_version, asked, describe))


def _brokers(registrations: Iterable[BrokerRegistration], listener: str) -> list[Broker]:
    return [
        Broker(node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker in registrations
        if (endpoint := broker.endpoints.get(listener)) is not None
    ]


def _lost_brokers(context: Context) -> list[Broker]:
    """Brokers that are gone but stay in the list for a moment."""
    return _brokers(context.services.metadata.lost_brokers(), context.listener)


async def _in_slices(
    response: MetadataResponse, version: int, asked: list[T], describe: Callable[[T], Topic]
) -> SlicedResponse:
    sliced = SlicedResponse(response, "topics", version)
    for topics in in_slices(asked):
        await sliced.add([describe(topic) for topic in topics])
    return sliced


class View:
    """One image as seen through one listener. Its parts are shared by all responses: never change them."""

    __slots__ = ("_listener", "_topics", "brokers", "image", "topic_operations", "version")

    def __init__(self, image: ClusterImage, listener: str, version: int, topic_operations: int) -> None:
        self.image = image
        self.version = version
        self.topic_operations = topic_operations
        self._listener = listener
        self._topics: dict[str, Topic] = {}
        self.brokers = _brokers(image.brokers.values(), listener)

    @classmethod
    def of(cls, request: MetadataRequest, context: Context) -> "View":
        image = context.services.image
        # Versions with equal responses share a view: error codes differ in v0 and before v6.
        version = 0 if context.api_version == 0 else 5 if context.api_version < 6 else 6
        operations = NOT_REQUESTED
        if request.include_topic_authorized_operations and context.services.authorizer is None:
            operations = authorized_operations(context, _ANY_TOPIC)
        key = ("metadata", context.listener, version, operations)
        view = image.memo.get(key)
        if view is None:
            view = image.memo[key] = cls(image, context.listener, version, operations)
        return view

    def topic(self, name: str) -> Topic:
        """An existing topic."""
        built = self._topics.get(name)
        if built is None:
            built = self._topics[name] = self._build(self.image.topics[name])
        return built

    def _build(self, topic: TopicImage) -> Topic:
        return Topic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=[self._partition(partition) for partition in topic.partitions],
            topic_authorized_operations=self.topic_operations,
        )

    def _partition(self, partition: PartitionImage) -> Partition:
        live = self.image.brokers
        replicas, isr = list(partition.replicas), list(partition.isr)
        offline = [replica for replica in replicas if not self._reaches(replica)]
        leader, error = partition.leader, ErrorCode.NONE
        if not self._reaches(leader):
            # From v6 on there is an error code for a leader without an endpoint on this listener.
            error = ErrorCode.LEADER_NOT_AVAILABLE
            if leader in live and self.version >= 6:
                error = ErrorCode.LISTENER_NOT_FOUND
            leader = NO_LEADER
        elif self.version == 0 and offline:
            error = ErrorCode.REPLICA_NOT_AVAILABLE
        if self.version == 0:
            replicas = [replica for replica in replicas if replica not in offline]
            isr = [replica for replica in isr if replica not in offline]
        return Partition(
            error_code=error,
            partition_index=partition.index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=offline,
        )

    def _reaches(self, broker_id: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        return broker is not None and self._listener in broker.endpoints
