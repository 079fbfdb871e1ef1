"""IncrementalAlterConfigs v0-1: sets, resets, appends to or subtracts from single settings (KIP-339).

v1   flexible (KIP-482)
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.metadata.config_changes import ConfigChange, ResourceChange
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


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
    results = await context.services.metadata.incremental_alter_configs(wanted, validate_only=request.validate_only)
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
