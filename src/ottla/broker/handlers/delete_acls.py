"""DeleteAcls v1-3: removes the ACLs that match filters; each filter succeeds or fails on its own (KIP-140).

v2   flexible (KIP-482)
v3   users as resources (KIP-373)
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.acl_messages import authorizer_of, read_filter
from ottla.broker.services import Context
from ottla.errors import KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from ottla.security.acls import AclBinding, AclBindingFilter
from ottla.security.resources import CLUSTER, Operation

FilterResult = DeleteAclsResponse.DeleteAclsFilterResult


@handles(ApiKey.DELETE_ACLS)
async def delete_acls(request: DeleteAclsRequest, context: Context) -> DeleteAclsResponse:
    context.require(Operation.ALTER, CLUSTER)
    authorizer_of(context)
    filters: list[AclBindingFilter | KafkaError] = []
    for asked in request.filters:
        try:
            filters.append(read_filter(asked))
        except KafkaError as error:
            filters.append(error)
    valid = [each for each in filters if not isinstance(each, KafkaError)]
    deleted = iter(await context.services.metadata.changes.delete_acls(valid, by=context.requester))
    return DeleteAclsResponse(
        filter_results=[
            FilterResult(error_code=each.code, error_message=each.detail)
            if isinstance(each, KafkaError)
            else FilterResult(error_message=None, matching_acls=[_describe(acl) for acl in next(deleted)])
            for each in filters
        ]
    )


def _describe(binding: AclBinding) -> DeleteAclsResponse.DeleteAclsMatchingAcl:
    (kind, name, pattern_type), (principal, host, operation, permission) = binding
    return DeleteAclsResponse.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=kind,
        resource_name=name,
        pattern_type=pattern_type,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )
