"""CreateAcls v1-3: adds ACLs; each one succeeds or fails on its own (KIP-140).

v2   flexible (KIP-482)
v3   users as resources (KIP-373)

When the response is sent, this broker decides by the new ACLs. The others follow within milliseconds.
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.acl_messages import authorizer_of
from ottla.broker.services import Context
from ottla.errors import KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from ottla.security.acls import binding_in
from ottla.security.resources import CLUSTER, Operation


@handles(ApiKey.CREATE_ACLS)
async def create_acls(request: CreateAclsRequest, context: Context) -> CreateAclsResponse:
    context.require(Operation.ALTER, CLUSTER)
    authorizer_of(context)
    bindings = [binding_in(creation, creation.resource_pattern_type, creation) for creation in request.creations]
    results = await context.services.metadata.changes.create_acls(bindings, by=context.requester)
    return CreateAclsResponse(results=[_result(result) for result in results])


def _result(error: KafkaError | None) -> CreateAclsResponse.AclCreationResult:
    if error is None:
        return CreateAclsResponse.AclCreationResult(error_message=None)
    return CreateAclsResponse.AclCreationResult(error_code=error.code, error_message=error.detail)
