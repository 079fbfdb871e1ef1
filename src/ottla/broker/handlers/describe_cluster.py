"""DescribeCluster v0-2: the brokers and the controller (KIP-700).

v1   endpoint type (KIP-919); there are no controllers besides the brokers
v2   fenced brokers on request (KIP-1073): those that are down, but were not unregistered
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.authorized_operations import NOT_REQUESTED, authorized_cluster_operations
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

BROKERS, CONTROLLERS = 1, 2


@handles(ApiKey.DESCRIBE_CLUSTER)
def describe_cluster(request: DescribeClusterRequest, context: Context) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"This is a broker; it cannot describe endpoints of type {request.endpoint_type}.",
            endpoint_type=BROKERS,
        )
    image = context.services.image
    brokers = {**image.known_brokers, **image.brokers} if request.include_fenced_brokers else image.brokers
    operations = NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        operations = authorized_cluster_operations(context)
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.shown_controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
                is_fenced=broker.broker_id not in image.brokers,
            )
            for broker in brokers.values()
            if (endpoint := broker.endpoints.get(context.listener)) is not None
        ],
        cluster_authorized_operations=operations,
    )
