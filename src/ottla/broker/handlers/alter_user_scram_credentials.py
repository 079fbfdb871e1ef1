"""AlterUserScramCredentials v0: adds, replaces and deletes SCRAM credentials of users (KIP-554)."""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.metadata.changes.scram_changes import Deletion, Upsertion
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from ottla.security.resources import CLUSTER, Operation

Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


@handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
async def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, context: Context
) -> AlterUserScramCredentialsResponse:
    if not context.allows(Operation.ALTER, CLUSTER):
        users = dict.fromkeys([*(each.name for each in request.deletions), *(each.name for each in request.upsertions)])
        return AlterUserScramCredentialsResponse(
            results=[
                Result(
                    user=user,
                    error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                    error_message=f"{context.principal} may not ALTER the cluster",
                )
                for user in users
            ]
        )
    results = await context.services.metadata.changes.alter_user_scram_credentials(
        [Deletion(each.name, each.mechanism) for each in request.deletions],
        [
            Upsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
            for each in request.upsertions
        ],
        by=context.requester,
    )
    return AlterUserScramCredentialsResponse(
        results=[Result(user=result.user, error_code=result.error, error_message=result.message) for result in results]
    )
