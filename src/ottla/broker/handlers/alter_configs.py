"""AlterConfigs v0-2: replaces all settings of topics or of this broker (KIP-133).

v2   flexible (KIP-482)

Settings that the request leaves out are reset to their defaults. IncrementalAlterConfigs changes single settings.
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.authorization import split_config_changes
from ottla.broker.services import Context
from ottla.metadata.changes.config_changes import ConfigChange, ResourceChange
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse


@handles(ApiKey.ALTER_CONFIGS)
async def alter_configs(request: AlterConfigsRequest, context: Context) -> AlterConfigsResponse:
    wanted = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [ConfigChange(config.name, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    allowed, refused = split_config_changes(context, wanted)
    results = await context.services.metadata.changes.alter_configs(
        allowed, validate_only=request.validate_only, by=context.requester
    )
    results += refused
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=result.error,
                error_message=result.message,
                resource_type=result.resource_type,
                resource_name=result.name,
            )
            for result in results
        ]
    )
