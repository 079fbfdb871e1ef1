"""Our clients and tools on a broker with SASL and ACLs: the errors for users without a permission, and how soon."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ottla import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    ErrorCode,
    KafkaError,
    Operation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from ottla.broker.broker import Broker
from tests.support.secure_brokers import USERS, Security, running_broker

AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "group.initial.rebalance.delay.ms": "0",
}
Story = Callable[["World"], Coroutine[Any, Any, None]]


class World:
    """A broker with the users admin, who is a super user, alice and bob."""

    def __init__(self, broker: Broker, admin: AsyncAdmin) -> None:
        self.broker = broker
        self.admin = admin

    def settings(self, user: str, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.broker.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": USERS[user],
            "default.api.timeout.ms": 300_000,
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    async def allow(self, user: str, operation: Operation, kind: ResourceType, name: str, **more: Any) -> None:
        pattern_type = more.pop("pattern_type", PatternType.LITERAL)
        entry = AccessControlEntry(f"User:{user}", "*", operation, PermissionType.ALLOW)
        await self.admin.create_acls([AclBinding(ResourcePattern(kind, name, pattern_type), entry)])


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    """Runs a story. Refusals must reach clients immediately, not after their timeouts of 30 seconds."""

    async def stage(story: Story) -> None:
        settings = {**Security(tmp_path).settings("SASL_PLAINTEXT", ["PLAIN"]), **AUTHORIZED}
        async with running_broker(tmp_path / "data", settings) as broker:
            world = World(broker, AsyncAdmin())
            async with AsyncAdmin(world.settings("admin")) as world.admin:
                await world.admin.create_topic("orders", partitions=1)
                await story(world)

    return lambda story: asyncio.run(asyncio.wait_for(stage(story), 25))


def is_about(error: KafkaError, code: ErrorCode, name: str) -> None:
    assert error.code is code
    assert name in str(error)
    assert "ottla acl" in error.hint


def test_a_producer_learns_immediately_which_topic_it_may_not_write(play: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        async with AsyncProducer(world.settings("alice", enable_idempotence=False)) as producer:
            # Without DESCRIBE not even its partitions are known.
            with pytest.raises(KafkaError) as refused:
                await producer.send_and_wait("orders", b"1")
            is_about(refused.value, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders")
            await world.allow("alice", Operation.DESCRIBE, ResourceType.TOPIC, "orders")
            with pytest.raises(KafkaError) as refused:
                await producer.send_and_wait("orders", b"2")
            is_about(refused.value, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders")
            await world.allow("alice", Operation.WRITE, ResourceType.TOPIC, "orders")
            assert (await producer.send_and_wait("orders", b"3")).offset == 0

    play(story)


def test_an_idempotent_producer_needs_one_topic_to_write_to(play: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        await world.allow("alice", Operation.DESCRIBE, ResourceType.TOPIC, "orders")
        async with AsyncProducer(world.settings("alice")) as producer:
            with pytest.raises(KafkaError) as refused:
                await producer.send_and_wait("orders", b"1")
            assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        await world.allow("alice", Operation.WRITE, ResourceType.TOPIC, "ord", pattern_type=PatternType.PREFIXED)
        async with AsyncProducer(world.settings("alice")) as producer:
            assert (await producer.send_and_wait("orders", b"2")).offset == 0

    play(story)


def test_a_transactional_producer_needs_its_id(play: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        await world.allow("alice", Operation.WRITE, ResourceType.TOPIC, "orders")
        async with AsyncProducer(world.settings("alice", transactional_id="mine")) as producer:
            with pytest.raises(KafkaError) as refused:
                await producer.init_transactions()
            is_about(refused.value, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "mine")
        await world.allow("alice", Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "mine")
        async with AsyncProducer(world.settings("alice", transactional_id="mine")) as producer:
            await producer.init_transactions()

    play(story)


def test_a_consumer_learns_immediately_which_group_or_topic_it_may_not_read(play: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        async with AsyncProducer(world.settings("admin")) as producer:
            await producer.send_and_wait("orders", b"1")
        settings = world.settings("bob", group_id="billing", auto_offset_reset="earliest")
        async with AsyncConsumer(settings) as consumer:
            await consumer.subscribe(["orders"])
            with pytest.raises(KafkaError) as refused:
                await consumer.poll(300_000)
            assert refused.value.code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        await world.allow("bob", Operation.READ, ResourceType.GROUP, "billing")
        async with AsyncConsumer(settings) as consumer:
            await consumer.subscribe(["orders"])
            with pytest.raises(KafkaError) as refused:
                await consumer.poll(300_000)
            is_about(refused.value, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders")
        await world.allow("bob", Operation.READ, ResourceType.TOPIC, "orders")
        async with AsyncConsumer(settings) as consumer:
            await consumer.subscribe(["orders"])
            records = await consumer.poll(300_000)
            assert [record.value for record in records] == [b"1"]
            await consumer.commit()

    play(story)


def test_an_assigned_consumer_that_loses_its_permission_gets_an_error(play: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        await world.allow("bob", Operation.READ, ResourceType.TOPIC, "orders")
        async with AsyncConsumer(world.settings("bob", auto_offset_reset="earliest")) as consumer:
            await consumer.assign([("orders", 0)])
            assert not await consumer.poll(200)
            assert await world.admin.delete_acls([AclBindingFilter(principal="User:bob")])
            with pytest.raises(KafkaError) as refused:
                await consumer.poll(300_000)
            is_about(refused.value, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders")

    play(story)


def test_an_admin_adds_finds_and_deletes_acls(play: Callable[[Story], None]) -> None:
    async def story(world: World) -> None:
        admin = world.admin
        assert await admin.describe_acls() == []
        await world.allow("alice", Operation.READ, ResourceType.TOPIC, "a")
        await world.allow("alice", Operation.READ, ResourceType.TOPIC, "a")
        await world.allow("bob", Operation.ALL, ResourceType.GROUP, "g/1", pattern_type=PatternType.PREFIXED)
        assert [str(acl) for acl in await admin.describe_acls()] == [
            "User:alice ALLOW READ from * on TOPIC:LITERAL:a",
            "User:bob ALLOW ALL from * on GROUP:PREFIXED:g/1",
        ]
        concerning = AclBindingFilter(ResourceType.GROUP, "g/12", PatternType.MATCH)
        assert [acl.entry.principal for acl in await admin.describe_acls(concerning)] == ["User:bob"]
        assert len(await admin.delete_acls([concerning, AclBindingFilter()])) == 2
        assert await admin.describe_acls() == []
        wildcard = ResourcePattern(ResourceType.ANY, "a")
        with pytest.raises(KafkaError, match="Invalid resourceType ANY"):
            await admin.create_acls(
                [AclBinding(wildcard, AccessControlEntry("User:a", "*", Operation.READ, PermissionType.ALLOW))]
            )
        async with AsyncAdmin(world.settings("alice")) as alice:
            with pytest.raises(KafkaError) as refused:
                await alice.describe_acls()
            assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert "User:alice may not DESCRIBE the cluster" in str(refused.value)

    play(story)


# -- ottla acl --


def test_the_command_adds_lists_explains_and_removes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ottla import Broker as Embedding
    from ottla.cli.main import main

    settings = {**AUTHORIZED, "super.users": "User:ANONYMOUS"}
    with Embedding.embedded(settings=settings) as broker:
        monkeypatch.setenv("OTTLA_BOOTSTRAP", broker.bootstrap)
        monkeypatch.setenv("COLUMNS", "200")

        def run(*words: str) -> tuple[int, str]:
            capsys.readouterr()
            status = main(["acl", *words])
            captured = capsys.readouterr()
            return status, captured.out + captured.err

        status, text = run("add", "--allow-principal", "User:alice", "--producer", "--topic", "orders")
        assert status == 0
        assert text.startswith("added 3 ACLs")
        run("add", "--deny-principal", "User:eve", "--topic", "ord", "--resource-pattern-type", "prefixed")
        found = json.loads(run("list", "--topic", "orders", "--resource-pattern-type", "match", "--json")[1])
        assert [(acl["principal"], acl["operation"]) for acl in found] == [
            ("User:eve", "ALL"),
            ("User:alice", "WRITE"),
            ("User:alice", "CREATE"),
            ("User:alice", "DESCRIBE"),
        ]

        def check(user: str, operation: str, *resource: str) -> tuple[int, str]:
            status, text = run("check", "--principal", f"User:{user}", "--operation", operation, *resource)
            return status, text.splitlines()[-1]

        assert check("alice", "write", "--topic", "orders") == (
            0,
            "decided by the ACL: User:alice ALLOW WRITE from * on TOPIC:LITERAL:orders",
        )
        assert check("eve", "read", "--topic", "orders-7") == (
            1,
            "decided by the ACL: User:eve DENY ALL from * on TOPIC:PREFIXED:ord",
        )
        assert check("zoe", "read", "--topic", "orders")[1].startswith("no ACL of this resource matches")
        assert check("zoe", "read", "--group", "g")[1].startswith("the resource has no ACLs")
        assert check("ANONYMOUS", "alter", "--cluster") == (
            0,
            "decided by super.users: super users may do everything",
        )
        status, text = run("remove", "--allow-principal", "User:alice", "--topic", "orders")
        assert (status, text.splitlines()[0]) == (0, "removed 3 ACLs")
        assert run("remove", "--topic", "orders")[1] == "no ACL removed\n"
        assert run("add", "--topic", "a", "--allow-principal", "alice")[0] == 2


def test_without_an_authorizer_the_command_says_so(
    broker: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ottla.cli.main import main

    monkeypatch.setenv("OTTLA_BOOTSTRAP", broker.bootstrap)
    assert main(["acl", "check", "--principal", "User:a", "--operation", "read", "--topic", "t"]) == 1
    assert "the broker has no authorizer: everyone may do everything" in capsys.readouterr().err
    assert main(["acl", "list"]) == 1
    assert "SECURITY_DISABLED" in capsys.readouterr().err
