"""ApiVersions v0-5: the APIs and versions that this broker serves, and its finalized features.

v1   throttle time
v3   flexible (KIP-482); the client's software (KIP-511); features (KIP-584)
v4   features may start at level 0 (KAFKA-17011)
v5   the client can name the broker it expects (KIP-1242)

A later version is answered in v0 by the dispatcher. The response header is v0 in every version, because the client
does not know yet what the broker can do.
"""

import re
from functools import cache

from ottla.broker.dispatch import advertised, handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.metadata.changes.features import FEATURES, finalized_level
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS)
def api_versions(request: ApiVersionsRequest, context: Context) -> ApiVersionsResponse:
    version = context.api_version
    error = _fault(request, context) if version >= 3 else ErrorCode.NONE
    if error is not ErrorCode.NONE:
        return ApiVersionsResponse(error_code=error)
    response = ApiVersionsResponse(api_keys=_api_keys())
    if version >= 3:
        image = context.services.image
        response.supported_features = [
            ApiVersionsResponse.SupportedFeatureKey(
                name=name, min_version=feature.min_level, max_version=feature.max_level
            )
            for name, feature in FEATURES.items()
            # Clients that speak v3 refuse a lowest level of 0.
            if feature.min_level > 0 or version >= 4
        ]
        response.finalized_features_epoch = image.features_epoch
        response.finalized_features = [
            ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name in FEATURES
            if (level := finalized_level(image, name)) > 0
        ]
    return response


@cache
def _api_keys() -> list[ApiVersionsResponse.ApiVersion]:
    """Shared by all responses: never change it."""
    return [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
        for key, first, last in advertised()
    ]


def _fault(request: ApiVersionsRequest, context: Context) -> ErrorCode:
    """Checks the client's software name and version, and the broker that it expects."""
    for name in (request.client_software_name, request.client_software_version):
        if not _SOFTWARE.fullmatch(name):
            return ErrorCode.INVALID_REQUEST
    if context.api_version >= 5:
        names_a_cluster, names_a_node = request.cluster_id is not None, request.node_id != -1
        if names_a_cluster != names_a_node:
            return ErrorCode.INVALID_REQUEST
        services = context.services
        if names_a_cluster and (
            request.cluster_id != services.image.cluster_id or request.node_id != services.broker_id
        ):
            return ErrorCode.REBOOTSTRAP_REQUIRED
    return ErrorCode.NONE
