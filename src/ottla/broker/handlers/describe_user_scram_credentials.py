"""DescribeUserScramCredentials v0: which users have SCRAM credentials, without any secret (KIP-554)."""

from collections import Counter

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.metadata.changes.scram_changes import credentials_of, users_with_credentials
from ottla.metadata.image import ClusterImage
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from ottla.security.resources import CLUSTER, Operation

Result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
Info = DescribeUserScramCredentialsResponse.CredentialInfo


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, context: Context
) -> DescribeUserScramCredentialsResponse:
    context.require(Operation.DESCRIBE, CLUSTER)
    image = context.services.image
    if not request.users:
        names = [user for user, _ in users_with_credentials(image)]
        return DescribeUserScramCredentialsResponse(results=[_describe(image, user) for user in names])
    times = Counter(user.name for user in request.users)
    return DescribeUserScramCredentialsResponse(
        results=[
            _describe(image, user)
            if count == 1
            else Result(
                user=user,
                error_code=ErrorCode.DUPLICATE_RESOURCE,
                error_message=f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
            )
            for user, count in times.items()
        ]
    )


def _describe(image: ClusterImage, user: str) -> Result:
    found = credentials_of(image, user)
    if not found:
        return Result(
            user=user,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message=f"Attempt to describe a user credential that does not exist: {user}",
        )
    infos = [Info(mechanism=mechanism.number, iterations=iterations) for mechanism, iterations in found.items()]
    return Result(user=user, credential_infos=infos)
