"""OWNER of this broker's connections to etcd: calls to the JSON gateway of whichever member answers.

A call that certainly was not sent is retried on the next member. A call whose answer is lost is retried only if that is
harmless; otherwise `EtcdUnavailable` reports that its outcome is unknown.
"""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncGenerator
from typing import Any

from ottla.errors import OttlaError, error_text
from ottla.metadata.etcd.http import HttpConnection
from ottla.metadata.etcd.location import EtcdAccess, EtcdLocation, Member
from ottla.types import compact_json

log = logging.getLogger("ottla.metadata")

CONNECT_TIMEOUT_S = 1.0
IDLE_CONNECTIONS_MAX = 4

# gRPC's codes, as the gateway reports them.
NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 5, 7, 8
FAILED_PRECONDITION, UNAVAILABLE, UNAUTHENTICATED = 9, 14, 16
_TRANSIENT = (4, 10, UNAVAILABLE, 2, 1)
"""DEADLINE_EXCEEDED, ABORTED, UNAVAILABLE (no leader, timed out), UNKNOWN, CANCELLED: another member may answer."""


class EtcdUnavailable(Exception):
    """No member gave an answer. `was_sent`: the call may have been executed, or may be executed later."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


class EtcdError(Exception):
    """etcd rejected a call; nothing was executed."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class EtcdClient:
    """Calls on any member of one etcd cluster."""

    def __init__(self, location: EtcdLocation, access: EtcdAccess) -> None:
        self.location = location
        self._access = access
        self._context = _tls_context(location, access)
        self._token: str | None = None
        self._current = 0
        self._idle: list[HttpConnection] = []

    @property
    def member(self) -> Member:
        """The member that answered last."""
        return self.location.members[self._current]

    def avoid(self, member: Member) -> None:
        """Uses another member from now on, if this one is in use."""
        if member == self.member:
            self._current = (self._current + 1) % len(self.location.members)
            self._drop_idle()

    def close(self) -> None:
        self._drop_idle()

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    # Calls

    async def call(self, path: str, body: dict[str, Any], *, timeout_s: float, repeat: bool = True) -> dict[str, Any]:
        """The answer of the first member that gives one; each gets `timeout_s`.

        With `repeat`, a call without an answer is retried on the next member.
        """
        data = compact_json(body)
        reason = ""
        for _ in self.location.members:
            member = self.member
            was_sent = False
            try:
                async with asyncio.timeout(timeout_s):
                    connection = await self._connection()
                    was_sent = True
                    return await self._ask(connection, path, data)
            except (OSError, EtcdUnavailable) as error:
                reason = f"{member}: {_text(error)}"
            self.avoid(member)
            if was_sent and not repeat:
                raise EtcdUnavailable(reason, was_sent=True)
        raise EtcdUnavailable(reason, was_sent=repeat)

    async def stream(self, path: str, body: dict[str, Any], member: Member) -> AsyncGenerator[dict[str, Any], None]:
        """The messages of a streaming call. EtcdUnavailable when the stream ends."""
        connection = HttpConnection(member, self._context)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.open()
                headers = await self._headers(connection)
            async for line in connection.post_for_lines("/v3/" + path, json.dumps(body).encode(), headers):
                message = _parse(line)
                if "error" in message:
                    raise self._failure(message["error"])
                yield message["result"]
            raise EtcdUnavailable(f"{member}: closed the connection", was_sent=True)
        except OSError as error:
            raise EtcdUnavailable(f"{member}: {_text(error)}", was_sent=True) from error
        finally:
            connection.close()

    async def _connection(self) -> HttpConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.close()
        connection = HttpConnection(self.member, self._context)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.open()
        except BaseException:
            connection.close()
            raise
        return connection

    async def _ask(self, connection: HttpConnection, path: str, data: bytes) -> dict[str, Any]:
        try:
            headers = await self._headers(connection)
            answer = _parse((await connection.post("/v3/" + path, data, headers))[1])
            if _needs_new_token(answer) and self._access.user is not None:
                self._token = None
                headers = await self._headers(connection)
                answer = _parse((await connection.post("/v3/" + path, data, headers))[1])
        except BaseException:
            connection.close()
            raise
        if connection.is_open and len(self._idle) < IDLE_CONNECTIONS_MAX and connection.member == self.member:
            self._idle.append(connection)
        else:
            connection.close()
        if _code(answer) is not None:
            raise self._failure(answer)
        # Keepalive is a stream with one message.
        result: dict[str, Any] = answer.get("result", answer)
        return result

    async def _headers(self, connection: HttpConnection) -> dict[str, str]:
        if self._access.user is None:
            return {}
        if self._token is None:
            body = {"name": self._access.user, "password": self._access.password or ""}
            answer = _parse((await connection.post("/v3/auth/authenticate", json.dumps(body).encode(), {}))[1])
            if _code(answer) is not None:
                raise self._failure(answer)
            self._token = str(answer["token"])
        return {"Authorization": self._token}

    def _failure(self, answer: dict[str, Any]) -> Exception:
        code = _code(answer)
        if _needs_new_token(answer):
            self._token = None
        message = str(answer.get("message") or answer.get("error") or "no reason given").removeprefix("etcdserver: ")
        if code in _TRANSIENT:
            return EtcdUnavailable(message, was_sent=True)
        return EtcdError(code or 0, message)


def _code(answer: dict[str, Any]) -> int | None:
    code = answer.get("code", answer.get("grpc_code"))
    return code if isinstance(code, int) else None


def _needs_new_token(answer: dict[str, Any]) -> bool:
    """A token expires when it is not used or when etcd restarts. A JWT is also void after any change of users or roles,
    which has other error messages, with codes that depend on etcd's version."""
    return _code(answer) == UNAUTHENTICATED or (
        _code(answer) is not None
        and any(text in str(answer) for text in ("revision of auth store is old", "revision in header is old"))
    )


def _parse(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise EtcdUnavailable(f"the answer is not from etcd's gateway: {data[:40]!r}", was_sent=True)
    return answer


def _text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return error_text(error)


def _tls_context(location: EtcdLocation, access: EtcdAccess) -> ssl.SSLContext | None:
    if not location.uses_tls:
        return None
    files = (access.ca_file, access.certificate_file, access.key_file)
    try:
        for path in files:
            if path is not None:
                open(path, "rb").close()
        context = ssl.create_default_context(cafile=access.ca_file)
        # From Python 3.13 on, the default rejects authorities without a key usage: those of `openssl req -x509`.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if access.certificate_file is not None:
            context.load_cert_chain(access.certificate_file, access.key_file)
    except (OSError, ssl.SSLError) as error:
        raise OttlaError(
            f"cannot read the certificates for etcd: {error}",
            "Check ottla.etcd.ca.file, ottla.etcd.certificate.file and ottla.etcd.key.file (PEM).",
        ) from None
    return context
