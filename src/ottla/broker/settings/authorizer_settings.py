"""Builds the authorizer from `authorizer.class.name`, `super.users` and `allow.everyone.if.no.acl.found`. Pure."""

from typing import TYPE_CHECKING

from ottla.errors import ConfigError
from ottla.security.principal import Principal, parse_principal

if TYPE_CHECKING:
    from ottla.broker.settings.config import BrokerConfig
    from ottla.security.authorizer import Authorizer

AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
"""Names that turn ACLs on. The second one is the authorizer of Kafka's ZooKeeper mode; both mean the same here."""

AUTHORIZER_SETTINGS = frozenset(("super.users", "allow.everyone.if.no.acl.found"))
"""Settings of the authorizer, not of the broker: as in Kafka, a broker describes them only if they are set."""


def parse_super_users(text: str) -> list[Principal]:
    """Reads `User:alice;User:bob`. Raises ConfigError."""
    return [parse_principal(each) for each in text.split(";") if each.strip()]


def are_principals(text: str) -> bool:
    try:
        parse_super_users(text)
    except ConfigError:
        return False
    return True


def make_authorizer(config: "BrokerConfig") -> "Authorizer | None":
    """The authorizer, still without ACLs; None if none is configured."""
    if not config.authorizer_class_name:
        return None
    from ottla.security.authorizer import Authorizer

    return Authorizer(
        super_users=parse_super_users(config.super_users),
        allow_everyone_if_no_acl_found=config.allow_everyone_if_no_acl_found,
    )
