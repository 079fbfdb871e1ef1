"""The admin's calls about what a cluster can do and what has settings. Mixed into AsyncAdmin and Admin."""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from ottla.client.core.model import ConfigResource, Feature, error_of
from ottla.client.core.network import Network
from ottla.client.core.offset_lookup import NO_RETRY
from ottla.client.core.polling import ANY_NODE
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest

RESOURCE_TYPES = {"topic": 2, "broker": 4, "broker-logger": 8, "client-metrics": 16, "group": 32}
"""What has settings, and its number on the wire."""
_RESOURCE_NAMES = {number: name for name, number in RESOURCE_TYPES.items()}


class AsyncFeatureAdmin:
    """The part of AsyncAdmin that is about features and settings at large."""

    _network: Network

    async def describe_features(self, node_id: int | None = None) -> list[Feature]:
        """The features that a broker (any, if none is named) supports, and the level that the cluster has agreed on.

        >>> {f.name: f.finalized for f in await admin.describe_features()}
        {'transaction.version': 2, …}
        """

        def request(version: int) -> ApiVersionsRequest:
            return ApiVersionsRequest(client_software_name="ottla", client_software_version="admin")

        async def attempt() -> list[Feature]:
            destination = ANY_NODE if node_id is None else node_id
            if destination != ANY_NODE:
                await self._network.until_connected()
                self._network.check_node(destination)
            response = (await self._network.request(ApiKey.API_VERSIONS, request, destination=destination)).message
            if response.error_code != ErrorCode.NONE:
                raise KafkaError(error_of(response.error_code), "asking for the features")
            agreed = {each.name: each.max_version_level for each in response.finalized_features}
            found = [
                Feature(each.name, each.min_version, each.max_version, agreed.get(each.name, 0))
                for each in response.supported_features
            ]
            return sorted(found, key=lambda feature: feature.name)

        return await self._network.retrying(attempt, final=NO_RETRY)

    async def list_config_resources(self, kinds: Iterable[str] = ()) -> list[ConfigResource]:
        """What has settings to describe: topics, brokers …; only those of `kinds`, if any are named.

        >>> await admin.list_config_resources(["topic"])
        """
        wanted = [resource_type(kind) for kind in kinds]

        def request(version: int) -> ListConfigResourcesRequest:
            if version < 1:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker cannot list what has settings")
            return ListConfigResourcesRequest(resource_types=wanted)

        async def attempt() -> list[ConfigResource]:
            response = (await self._network.request(ApiKey.LIST_CONFIG_RESOURCES, request)).message
            if response.error_code != ErrorCode.NONE:
                raise KafkaError(error_of(response.error_code), "listing what has settings")
            found = [
                ConfigResource(_RESOURCE_NAMES.get(each.resource_type, f"{each.resource_type}"), each.resource_name)
                for each in response.config_resources
            ]
            return sorted(found, key=lambda resource: (resource.kind, resource.name))

        return await self._network.retrying(attempt, final=NO_RETRY)


class FeatureAdmin:
    """The part of Admin that is about features: each call of AsyncFeatureAdmin, waited for."""

    _async: Any
    _call: Callable[[Coroutine[Any, Any, Any]], Any]

    def describe_features(self, node_id: int | None = None) -> list[Feature]:
        return self._call(self._async.describe_features(node_id))

    def list_config_resources(self, kinds: Iterable[str] = ()) -> list[ConfigResource]:
        return self._call(self._async.list_config_resources(kinds))


def resource_type(kind: str) -> int:
    """The number of a kind of thing that has settings."""
    if kind not in RESOURCE_TYPES:
        raise OttlaError(f"nothing of the kind {kind!r} has settings", f"Name one of {', '.join(RESOURCE_TYPES)}.")
    return RESOURCE_TYPES[kind]
