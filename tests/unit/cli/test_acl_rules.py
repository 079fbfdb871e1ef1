"""The options of `ottla acl` mean what those of kafka-acls mean."""

import pytest

from ottla.cli.acl.rules import Options, bindings_of, filters_of, parse_operation
from ottla.errors import OttlaError
from ottla.security.acls import AclBinding
from ottla.security.resources import Operation, PatternType, PermissionType, ResourceType


def texts(bindings: list[AclBinding]) -> list[str]:
    return [str(binding) for binding in bindings]


def test_a_producer_needs_three_operations_on_its_topic() -> None:
    options = Options(topics=["orders"], allowed=["User:alice"], producer=True)
    assert texts(bindings_of(options)) == [
        f"User:alice ALLOW {operation} from * on TOPIC:LITERAL:orders" for operation in ("WRITE", "DESCRIBE", "CREATE")
    ]


def test_a_transactional_producer_needs_its_id_and_an_idempotent_one_the_cluster() -> None:
    options = Options(
        topics=["orders"], transactional_ids=["t"], allowed=["User:alice"], producer=True, idempotent=True
    )
    assert texts(bindings_of(options))[3:] == [
        "User:alice ALLOW WRITE from * on TRANSACTIONAL_ID:LITERAL:t",
        "User:alice ALLOW DESCRIBE from * on TRANSACTIONAL_ID:LITERAL:t",
        "User:alice ALLOW IDEMPOTENT_WRITE from * on CLUSTER:LITERAL:kafka-cluster",
    ]


def test_a_consumer_needs_its_topic_and_its_group() -> None:
    options = Options(
        topics=["shop."], groups=["g"], allowed=["User:a"], consumer=True, pattern_type=PatternType.PREFIXED
    )
    assert texts(bindings_of(options)) == [
        "User:a ALLOW READ from * on TOPIC:PREFIXED:shop.",
        "User:a ALLOW DESCRIBE from * on TOPIC:PREFIXED:shop.",
        "User:a ALLOW READ from * on GROUP:PREFIXED:g",
    ]


def test_principals_hosts_and_operations_are_combined() -> None:
    options = Options(
        topics=["a"],
        allowed=["User:x"],
        denied=["User:y"],
        allow_hosts=["10.0.0.1", "10.0.0.2"],
        operations=[Operation.READ],
    )
    assert texts(bindings_of(options)) == [
        "User:x ALLOW READ from 10.0.0.1 on TOPIC:LITERAL:a",
        "User:x ALLOW READ from 10.0.0.2 on TOPIC:LITERAL:a",
        "User:y DENY READ from * on TOPIC:LITERAL:a",
    ]


def test_without_an_operation_all_are_meant() -> None:
    assert texts(bindings_of(Options(cluster=True, allowed=["User:x"], pattern_type=PatternType.PREFIXED))) == [
        "User:x ALLOW ALL from * on CLUSTER:LITERAL:kafka-cluster"
    ]


@pytest.mark.parametrize("text", ["describe-configs", "DescribeConfigs", "DESCRIBE_CONFIGS", " describeconfigs "])
def test_an_operation_has_several_spellings(text: str) -> None:
    assert parse_operation(text) is Operation.DESCRIBE_CONFIGS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(), "no resource"),
        (Options(topics=["a"]), "no principal"),
        (Options(topics=["a"], allowed=["alice"]), "not a principal"),
        (Options(topics=["a"], allowed=["User:a"], deny_hosts=["10.0.0.1"]), "--deny-host without --deny-principal"),
        (Options(topics=["a"], allowed=["User:a"], consumer=True), "--consumer needs a group"),
        (Options(groups=["a"], allowed=["User:a"], producer=True), "need a topic"),
        (
            Options(topics=["a"], allowed=["User:a"], producer=True, operations=[Operation.READ]),
            "cannot be combined with --producer",
        ),
        (Options(topics=["a"], allowed=["User:a"], operations=[Operation.CLUSTER_ACTION]), "does not apply to a topic"),
        (
            Options(topics=["a"], groups=["g"], allowed=["User:a"], consumer=True, idempotent=True),
            "--idempotent needs --producer",
        ),
        (Options(topics=["a"], allowed=["User:a"], producer=True, cluster=True), "omit --cluster"),
    ],
)
def test_options_that_mean_nothing_are_explained(options: Options, message: str) -> None:
    with pytest.raises(OttlaError, match=message):
        bindings_of(options)


def test_without_a_resource_all_are_listed() -> None:
    (everything,) = filters_of(Options(pattern_type=PatternType.ANY))
    assert everything == (ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, PermissionType.ANY)
    (of_alice,) = filters_of(Options(pattern_type=PatternType.ANY), ["User:alice"])
    assert of_alice.principal == "User:alice"


def test_a_filter_has_what_was_named_and_nothing_else() -> None:
    (found,) = filters_of(Options(topics=["a"], allowed=["User:x"]))
    assert found == (
        ResourceType.TOPIC,
        "a",
        PatternType.LITERAL,
        "User:x",
        None,
        Operation.ANY,
        PermissionType.ALLOW,
    )
    assert len(filters_of(Options(topics=["a"], allowed=["User:x"], producer=True))) == 3
