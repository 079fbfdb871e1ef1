"""Admin calls about users that log in with SCRAM (KIP-554). Passwords never leave this process."""

import asyncio
import os
from collections.abc import Iterable

from ottla.client.admin.requests import ask, fixed, retrying
from ottla.client.core.model import ScramCredentialInfo
from ottla.client.core.network import Network
from ottla.client.core.polling import CONTROLLER
from ottla.errors import ArgumentError, ErrorCode, raise_for
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from ottla.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from ottla.security.sasl.scram_math import SALT_BYTES, SCRAM_MECHANISMS, ScramMechanism, salted_password


async def upsert_user_scram_credential(
    network: Network, user: str, password: str, mechanism: str, iterations: int
) -> None:
    chosen = scram_mechanism(mechanism)
    if not password:
        raise ArgumentError(f"the password of {user} is empty", "Choose one with at least one character.")
    salt = os.urandom(SALT_BYTES)
    salted = await asyncio.to_thread(salted_password, chosen, password, salt, max(1, iterations))
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=user, mechanism=chosen.number, iterations=iterations, salt=salt, salted_password=salted
    )
    await _alter(network, AlterUserScramCredentialsRequest(upsertions=[upsertion]), f"adding user {user}")


async def delete_user_scram_credential(network: Network, user: str, mechanism: str) -> None:
    deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(
        name=user, mechanism=scram_mechanism(mechanism).number
    )
    request = AlterUserScramCredentialsRequest(deletions=[deletion])
    await _alter(network, request, f"deleting the {mechanism} credential of user {user}")


async def describe_user_scram_credentials(
    network: Network, users: Iterable[str] | None = None
) -> dict[str, list[ScramCredentialInfo]]:
    asked = None if users is None else list(dict.fromkeys(users))
    if asked == []:
        return {}
    message = DescribeUserScramCredentialsRequest(
        users=None if asked is None else [DescribeUserScramCredentialsRequest.UserName(name=user) for user in asked]
    )
    names = {each.number: each.name for each in SCRAM_MECHANISMS.values()}

    async def attempt() -> dict[str, list[ScramCredentialInfo]]:
        response = await ask(network, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, fixed(message))
        raise_for(response.error_code, "describing users", response.error_message)
        found = {}
        for result in response.results:
            if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                continue
            raise_for(result.error_code, f"describing user {result.user}", result.error_message)
            found[result.user] = [
                ScramCredentialInfo(names.get(info.mechanism, f"{info.mechanism}"), info.iterations)
                for info in result.credential_infos
            ]
        return dict(sorted(found.items()))

    return await retrying(network, attempt)


def scram_mechanism(name: str) -> ScramMechanism:
    if name not in SCRAM_MECHANISMS:
        raise ArgumentError(f"{name!r} is not a SCRAM mechanism", f"Use {' or '.join(SCRAM_MECHANISMS)}.")
    return SCRAM_MECHANISMS[name]


async def _alter(network: Network, message: AlterUserScramCredentialsRequest, doing: str) -> None:
    async def attempt() -> None:
        response = await ask(network, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, fixed(message), CONTROLLER)
        for result in response.results:
            raise_for(result.error_code, doing, result.error_message)

    await retrying(network, attempt)
