"""Topics in requests about offsets of groups: the client must be allowed to read each of them. Pure."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.handler_support.later import Later
from ottla.errors import ErrorCode
from ottla.security.resources import Operation, ResourceType

if TYPE_CHECKING:
    from ottla.broker.services import Context

Response = TypeVar("Response")


def take_refused(request: Any, context: "Context", *, by_id: bool = False) -> list[Any]:
    """Removes the topics that the client may not read from a request, and returns them."""
    readable = context.allowed(Operation.READ, ResourceType.TOPIC)
    if readable is None:
        return []
    names = context.services.image.topic_names
    allowed: list[Any] = []
    refused: list[Any] = []
    for topic in request.topics:
        name = names.get(topic.topic_id) if by_id else topic.name
        # An unknown id is answered as such.
        (allowed if name is None or readable[name] else refused).append(topic)
    request.topics = allowed
    return refused


def refused_topics(
    topics: Iterable[Any],
    topic_type: Callable[..., Any],
    partition_type: Callable[..., Any],
    code: ErrorCode = ErrorCode.TOPIC_AUTHORIZATION_FAILED,
) -> list[Any]:
    """Topics of a request as topics of its response, with the same error for every partition."""
    found = []
    for topic in topics:
        partitions = [
            partition_type(partition_index=each.partition_index, error_code=code) for each in topic.partitions
        ]
        refused = topic_type(name=topic.name, partitions=partitions)
        if hasattr(topic, "topic_id"):
            refused.topic_id = topic.topic_id
        found.append(refused)
    return found


def then(
    answer: Response | Awaitable[Response], change: Callable[[Response], Response]
) -> Response | Awaitable[Response]:
    """Applies `change` to a response, now or when it is available."""
    if not isinstance(answer, Awaitable):
        return change(answer)

    async def later() -> Response:
        return change(await answer)

    return Later(later)
