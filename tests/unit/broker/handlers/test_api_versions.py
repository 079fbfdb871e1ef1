"""ApiVersions, the first request of every client."""

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.dispatch import SERVED
from ottla.broker.handlers import api_versions as handler
from ottla.errors import ErrorCode
from ottla.metadata.changes import features as feature_rules
from ottla.metadata.changes.features import Feature
from ottla.metadata.image import ClusterImage
from ottla.protocol.api import ApiKey
from ottla.protocol.framing import encode_response
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse


def asked(
    version: int, *, name: str = "apache-kafka-java", software: str = "4.3.0", **fields: Any
) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=software, **fields)
    services = SimpleNamespace(broker_id=1, image=ClusterImage(cluster_id="this-cluster"))
    context = SimpleNamespace(api_version=version, services=services)
    response = handler.api_versions(request, context)  # type: ignore[arg-type]
    assert isinstance(response, ApiVersionsResponse)
    return ApiVersionsResponse.decode(response.encode(version), version)


@pytest.mark.parametrize("version", range(6))
def test_exactly_the_served_apis_are_listed(version: int) -> None:
    response = asked(version)
    assert response.error_code == ErrorCode.NONE
    ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert ranges.keys() == SERVED.keys()
    assert ranges[ApiKey.API_VERSIONS] == (0, 5)
    assert ranges[ApiKey.PRODUCE] == (0, 13)


def test_share_groups_are_not_offered() -> None:
    """Spec: A8. A client that wants one reports the feature as unsupported before it sends a request."""
    offered = {ApiKey(key.api_key).name for key in asked(4).api_keys}
    assert not {name for name in offered if "SHARE" in name}


@pytest.mark.parametrize("version", range(6))
def test_the_response_header_is_the_oldest_one_in_every_version(version: int) -> None:
    frame = encode_response(ApiKey.API_VERSIONS, version, 9, asked(version))
    assert frame[4:10] == b"\0\0\0\x09\0\0"  # correlation id, then the error code at once: no tag section


@pytest.mark.parametrize("name", ["librdkafka", "a", "A-1.b", "confluent-kafka-python"])
def test_a_well_formed_client_name_is_accepted(name: str) -> None:
    assert asked(3, name=name).error_code == ErrorCode.NONE


@pytest.mark.parametrize("name", ["", "-a", "a-", ".", "a b", "ä", "a\n", "name/1"])
def test_a_malformed_client_name_is_an_invalid_request(name: str) -> None:
    assert asked(3, name=name).error_code == ErrorCode.INVALID_REQUEST
    assert asked(3, software=name).error_code == ErrorCode.INVALID_REQUEST
    assert asked(0, name=name).error_code == ErrorCode.NONE  # older versions do not say who asks


def test_a_client_connected_to_the_wrong_broker_gets_an_error() -> None:
    """KIP-1242: the client names the cluster and node it expects."""
    assert asked(5, cluster_id="this-cluster", node_id=1).error_code == ErrorCode.NONE
    assert asked(5, cluster_id="other", node_id=1).error_code == ErrorCode.REBOOTSTRAP_REQUIRED
    assert asked(5, cluster_id="this-cluster", node_id=2).error_code == ErrorCode.REBOOTSTRAP_REQUIRED
    assert asked(5, cluster_id="this-cluster").error_code == ErrorCode.INVALID_REQUEST
    assert asked(5, node_id=1).error_code == ErrorCode.INVALID_REQUEST


def test_features_are_listed_as_each_version_can_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"from.zero": Feature(0, 2, 2), "from.one": Feature(1, 1, 1), "not.finalized": Feature(0, 1, 0)}
    for module in (handler, feature_rules):
        monkeypatch.setattr(module, "FEATURES", features)
    assert [f.name for f in asked(3).supported_features] == ["from.one"]
    assert [f.name for f in asked(4).supported_features] == ["from.zero", "from.one", "not.finalized"]
    for version in (3, 4):
        response = asked(version)
        assert response.finalized_features_epoch >= 0
        assert [(f.name, f.max_version_level) for f in response.finalized_features] == [
            ("from.zero", 2),
            ("from.one", 1),
        ]


def test_no_feature_is_finalized_that_is_not_served() -> None:
    """A client that saw transaction.version 2 or group.version 1 would use APIs that do not exist."""
    finalized = {feature.name: feature.max_version_level for feature in asked(4).finalized_features}
    assert finalized.get("group.version", 0) == 0 or ApiKey.CONSUMER_GROUP_HEARTBEAT in SERVED
    assert finalized.get("transaction.version", 0) < 2 or SERVED[ApiKey.END_TXN].versions[-1] >= 5
