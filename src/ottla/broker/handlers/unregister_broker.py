"""UnregisterBroker v0: removes a broker that was stopped permanently from the cluster."""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from ottla.security.resources import CLUSTER, Operation


@handles(ApiKey.UNREGISTER_BROKER)
async def unregister_broker(request: UnregisterBrokerRequest, context: Context) -> UnregisterBrokerResponse:
    context.require(Operation.ALTER, CLUSTER)
    await context.services.metadata.changes.unregister_broker(request.broker_id, by=context.requester)
    return UnregisterBrokerResponse(error_message=None)
