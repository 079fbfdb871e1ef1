"""DescribeAcls v1-3: the ACLs that match a filter (KIP-140).

v2   flexible (KIP-482)
v3   users as resources (KIP-373)
"""

from itertools import groupby

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.acl_messages import authorizer_of, read_filter
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.security.resources import CLUSTER, Operation


@handles(ApiKey.DESCRIBE_ACLS)
def describe_acls(request: DescribeAclsRequest, context: Context) -> DescribeAclsResponse:
    context.require(Operation.DESCRIBE, CLUSTER)
    found = read_filter(request).find(authorizer_of(context).acls)
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            DescribeAclsResponse.DescribeAclsResource(
                resource_type=pattern.type,
                resource_name=pattern.name,
                pattern_type=pattern.pattern_type,
                acls=[
                    DescribeAclsResponse.AclDescription(
                        principal=entry.principal,
                        host=entry.host,
                        operation=entry.operation,
                        permission_type=entry.permission,
                    )
                    for _, entry in group
                ],
            )
            for pattern, group in groupby(found, key=lambda binding: binding.pattern)
        ],
    )
