"""How admin calls send requests: to which broker, with which retries, and how a response's error is raised."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from ottla.client.core.coordinator_lookup import GROUP_KEY, build_find_coordinator
from ottla.client.core.model import Node
from ottla.client.core.network import Network
from ottla.client.core.offset_lookup import NO_RETRY
from ottla.client.core.polling import ANY_NODE
from ottla.errors import raise_for
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest

T = TypeVar("T")

Build = Callable[[int], Any]
"""Builds the request in the version that the connection negotiated."""


async def retrying(network: Network, attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeats `attempt` until it succeeds, fails with an error that a retry cannot fix, or times out."""
    return await network.retrying(attempt, final=NO_RETRY)


async def ask(
    network: Network, api_key: int, build: Build, destination: int = ANY_NODE, max_version: int | None = None
) -> Any:
    """One request to one broker; the response."""
    if destination != ANY_NODE:
        await network.until_connected()
    return (await network.request(api_key, build, destination=destination, max_version=max_version)).message


async def ask_named(network: Network, api_key: int, build: Build, node_id: int | None) -> Any:
    """One request to the broker that the user named, or to any if None. Fails if there is no such broker."""
    if node_id is None:
        return await ask(network, api_key, build)
    await network.until_connected()
    if node_id not in network.view.brokers:
        await network.refresh()  # it may have joined since
    network.check_node(node_id)
    return await ask(network, api_key, build, node_id)


async def ask_coordinator(
    network: Network, api_key: int, build: Build, key: str, key_type: int = GROUP_KEY, max_version: int | None = None
) -> Any:
    """One request to the coordinator of a group or a transactional id.

    The coordinator is looked up in every attempt. So a retry after NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE or
    COORDINATOR_LOAD_IN_PROGRESS finds a coordinator that has moved.
    """
    nodes = await coordinators_of(network, [key], key_type)
    return await ask(network, api_key, build, nodes[key].node_id, max_version)


async def coordinators_of(network: Network, keys: Iterable[str], key_type: int = GROUP_KEY) -> dict[str, Node]:
    """The coordinator of each group or transactional id."""
    asked = list(dict.fromkeys(keys))
    of = "group " if key_type == GROUP_KEY else ""

    def build(version: int) -> FindCoordinatorRequest:
        return build_find_coordinator(asked, key_type, version)

    found: dict[str, Node] = {}
    while asked:
        response = await ask(network, ApiKey.FIND_COORDINATOR, build)
        # Before version 4 a request had one key, and the response does not repeat it (KIP-699).
        answers = {answer.key: answer for answer in response.coordinators} or {asked[0]: response}
        for key, answer in answers.items():
            raise_for(answer.error_code, f"finding the coordinator of {of}{key}", answer.error_message)
            found[key] = Node(answer.node_id, answer.host, answer.port)
        asked = [key for key in asked if key not in answers]
    return found


def by_coordinator(coordinators: Mapping[str, Node]) -> dict[int, list[str]]:
    """The keys of each coordinator, by node id."""
    by_node: dict[int, list[str]] = {}
    for key, node in coordinators.items():
        by_node.setdefault(node.node_id, []).append(key)
    return by_node


def fixed(message: Any) -> Build:
    """A request that is the same in every version."""
    return lambda version: message
