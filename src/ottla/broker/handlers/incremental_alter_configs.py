"""IncrementalAlterConfigs v0-1: sets, resets, appends to or subtracts from single settings (KIP-339).

v1   flexible (KIP-482)
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.authorization import split_config_changes
from ottla.broker.handler_support.broker_loggers import alter_loggers
from ottla.broker.services import Context
from ottla.errors import KafkaError
from ottla.metadata.changes.config_changes import (
    ConfigChange,
    ResourceChange,
    ResourceResult,
    check_broker_name,
)
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.wire_values import ConfigResourceType


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS)
async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, context: Context
) -> IncrementalAlterConfigsResponse:
    wanted = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [ConfigChange(config.name, config.value, config.config_operation) for config in resource.configs],
        )
        for resource in request.resources
    ]
    wanted, refused = split_config_changes(context, wanted)
    stored = [resource for resource in wanted if resource.resource_type != ConfigResourceType.BROKER_LOGGER]
    metadata = context.services.metadata
    results = await metadata.changes.incremental_alter_configs(
        stored, validate_only=request.validate_only, by=context.requester
    )
    results += [
        _alter_logger(resource, context, request.validate_only)
        for resource in wanted
        if resource.resource_type == ConfigResourceType.BROKER_LOGGER
    ]
    results += refused
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=result.error,
                error_message=result.message,
                resource_type=result.resource_type,
                resource_name=result.name,
            )
            for result in results
        ]
    )


def _alter_logger(resource: ResourceChange, context: Context, validate_only: bool) -> ResourceResult:
    """Levels of loggers are changed in this process; they are not part of the cluster's metadata."""
    kind, name, changes = resource
    try:
        check_broker_name(name, context.services.broker_id)
        alter_loggers(changes, validate_only=validate_only, by=context.requester)
    except KafkaError as error:
        return ResourceResult(kind, name, error.code, error.detail)
    return ResourceResult(kind, name)
