"""Wire transcripts as text: the requests and responses between group members and a simulated broker.

A story is a file of steps, each followed by `----` and the messages it caused. The steps are a few words
(`ann joins`, `wait 3000`); the rest of the file is recorded from the broker, and compared.
"""

import asyncio
import re
import shlex
from collections.abc import Callable
from typing import Any

from ottla.errors import ErrorCode
from ottla.protocol.api import API
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.schema import Message, Struct
from ottla.testing.world import PORT, World
from tests.support.wire.group_requests import (
    assignment,
    commit_request,
    heartbeat_request,
    join_request,
    leave_request,
    offsets_request,
    subscription,
    sync_request,
)

VERSIONS = {"join": 9, "sync": 5, "heartbeat": 4, "leave": 5, "commit": 9, "fetch": 9, "find": 4}
MEMBER_ID = re.compile(r"(.*)-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
QUIET_S = 0.05
"""How long the connections must be silent before the next step: longer than any response takes."""


class Speaker:
    """One client: a connection, and what it has learned so far."""

    def __init__(self, name: str, on_response: Callable[["Speaker", Any], None]) -> None:
        self.name = name
        self.member_id = ""
        self.generation = -1
        self._on_response = on_response
        self._asked: list[tuple[int, int]] = []
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None

    async def say(self, request: Message, version: int) -> None:
        if self._writer is None:
            reader, self._writer = await asyncio.open_connection("127.0.0.1", PORT)
            self._listener = asyncio.get_running_loop().create_task(self._listen(reader))
        self._asked.append((request.api_key, version))
        self._writer.write(encode_request(request.api_key, version, len(self._asked), self.name, request))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                api_key, version = self._asked[int.from_bytes(frame[:4], "big") - 1]
                self._on_response(self, decode_response(api_key, version, frame)[1])
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hang_up()

    def hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._listener is not None and self._listener is not asyncio.current_task():
            self._listener.cancel()
        self._writer = self._listener = None
        self._asked = []


class Stage:
    """Executes the steps of one story."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.speakers: dict[str, Speaker] = {}
        self._lines: list[tuple[str, int, str]] = []
        self._names: dict[str, str] = {}

    async def play(self, step: str) -> list[str]:
        """The messages a step caused, grouped by speaker."""
        self._lines = []
        words = shlex.split(step)
        await self._do(words)
        await asyncio.sleep(QUIET_S)
        return [text for _, _, text in sorted(self._lines, key=lambda line: (line[0], line[1]))]

    async def _do(self, words: list[str]) -> None:
        plain = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        match plain:
            case ["topic", name]:
                async with self.world.admin() as admin:
                    await admin.create_topic(name, partitions=int(options.get("partitions", "3")))
            case ["wait", milliseconds]:
                await asyncio.sleep(int(milliseconds) / 1000)
            case ["broker", "restarts"]:
                await self.world.stop_broker()
                await self.world.start_broker()
            case ["broker", "dies"]:
                self.world.kill_broker()
                for speaker in self.speakers.values():
                    speaker.hang_up()
                await self.world.start_broker()
            case [name, verb]:
                await self._speak(self.speakers.setdefault(name, Speaker(name, self._on_response)), verb, options)
            case _:
                raise ValueError(f"unknown step: {words}")

    async def _speak(self, speaker: Speaker, verb: str, options: dict[str, str]) -> None:
        group = options.pop("group", "g")
        wanted = options.pop("version", None)
        instance = options.pop("instance", None)
        member_id = self._real(options.pop("member", speaker.member_id))
        generation = int(options.pop("generation", speaker.generation))
        asked: tuple[str, Message]
        match verb:
            case "finds":
                is_single = wanted is not None and int(wanted) < 4
                keys: dict[str, Any] = {"key": group} if is_single else {"coordinator_keys": [group]}
                asked = "find", FindCoordinatorRequest(**keys)
            case "joins":
                protocols = {
                    protocol: subscription(*options.get("topics", "orders").split(","))
                    for protocol in options.get("protocols", "range").split(",")
                }
                asked = (
                    "join",
                    join_request(
                        member_id,
                        group=group,
                        instance=instance,
                        protocols=protocols,
                        session_ms=int(options.get("session_ms", "10000")),
                        rebalance_ms=int(options.get("rebalance_ms", "60000")),
                        reason=options.get("reason"),
                    ),
                )
            case "syncs":
                shares = {
                    self._real(self.speakers[who].member_id if who in self.speakers else who): assignment(
                        orders=[int(part) for part in parts.split(",") if part]
                    )
                    for who, parts in options.items()
                }
                asked = "sync", sync_request(member_id, generation, shares, group=group, instance=instance)
            case "beats":
                asked = "heartbeat", heartbeat_request(member_id, generation, group=group, instance=instance)
            case "leaves":
                leaving = (member_id, instance)
                reason = options.get("reason")
                asked = "leave", leave_request(leaving, group=group, reason=reason, version=int(wanted or "5"))
            case "commits":
                offsets = {int(partition): int(offset) for partition, offset in options.items()}
                asked = (
                    "commit",
                    commit_request(offsets, group=group, member_id=member_id, generation=generation, instance=instance),
                )
            case "fetches":
                asked = "fetch", offsets_request(group, version=9)
            case "describes":
                asked = "describe", DescribeGroupsRequest(groups=[group])
            case "lists":
                asked = "list", ListGroupsRequest()
            case "deletes":
                asked = "delete", DeleteGroupsRequest(groups_names=[group])
            case _:
                raise ValueError(f"unknown step: {verb}")
        kind, message = asked
        version = int(wanted) if wanted is not None else VERSIONS.get(kind, message.versions[-1])
        # Shown as the broker reads it: without fields that the version lacks.
        said = type(message).decode(message.encode(version), version)
        self._note(speaker, f"> {API[message.api_key].name} v{version}", said)
        await speaker.say(message, version)

    def _on_response(self, speaker: Speaker, response: Any) -> None:
        self._note(speaker, f"< {API[response.api_key].name}", response)
        if getattr(response, "member_id", ""):
            speaker.member_id = response.member_id
        if getattr(response, "generation_id", -1) >= 0:
            speaker.generation = response.generation_id

    # --- text ---------------------------------------------------------------------------------------------

    def _note(self, speaker: Speaker, what: str, message: Struct) -> None:
        text = " ".join((speaker.name, what, *self._fields(message)))
        self._lines.append((speaker.name, len(self._lines), text))

    def _fields(self, message: Struct) -> list[str]:
        shown = []
        for declared in message._fields:
            value = getattr(message, declared.name)
            if value != declared.default():
                shown.append(f"{declared.name}={self._text(declared.name, value)}")
        return shown

    def _text(self, name: str, value: Any) -> str:
        if isinstance(value, Struct):
            return "{" + " ".join(self._fields(value)) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(self._text(name, item) for item in value) + "]"
        if name == "error_code":
            return ErrorCode(value).name
        if isinstance(value, bytes | memoryview):
            return _read(name, bytes(value))
        if isinstance(value, str):
            text = self._short(value)
            return repr(text) if " " in text or not text else text
        return str(value)

    def _short(self, value: str) -> str:
        """Member ids end in a UUID; here in a number, counted up in the order they are first seen."""
        found = MEMBER_ID.fullmatch(value)
        if found is None:
            return value
        if value not in self._names:
            count = sum(known.startswith(f"{found[1]}-") for known in self._names.values())
            self._names[value] = f"{found[1]}-{count + 1}"
        return self._names[value]

    def _real(self, name: str) -> str:
        """The member id behind its short form."""
        return next((real for real, short in self._names.items() if short == name), name)


def _read(name: str, data: bytes) -> str:
    """Subscriptions and assignments as text."""
    try:
        if "metadata" in name:
            return "(" + ", ".join(ConsumerProtocolSubscription.decode(data, 0, 2).topics) + ")"
        if "assignment" in name:
            parts = ConsumerProtocolAssignment.decode(data, 0, 2).assigned_partitions
            return "(" + ", ".join(f"{part.topic} {part.partitions}" for part in parts) + ")"
    except ProtocolError:
        pass
    return data.hex()


def read_story(text: str) -> list[tuple[str, str]]:
    """(prose and step, expectation) pairs of a story; prose are lines that start with `#`, and empty ones."""
    found = []
    head: list[str] = []
    body: list[str] | None = None
    for line in text.splitlines():
        if body is None:
            if line == "----":
                body = []
            else:
                head.append(line)
        elif line:
            body.append(line)
        else:
            found.append(("\n".join(head), "\n".join(body)))
            head, body = [], None
    if body is not None:
        found.append(("\n".join(head), "\n".join(body)))
    return found


def replay_transcript(story: str, seed: int = 1, **settings: str) -> str:
    """Runs a story and returns it as it should be recorded."""

    async def play(world: World) -> list[str]:
        stage = Stage(world)
        replayed = []
        for head, _ in read_story(story):
            step = head.splitlines()[-1]
            said = await stage.play(step)
            replayed.append("\n".join([head, "----", *said]))
        for speaker in stage.speakers.values():
            speaker.hang_up()
        await asyncio.sleep(QUIET_S)
        return replayed

    pieces: list[str] = World(seed, **settings).run(play)
    return "\n\n".join(pieces) + "\n"
