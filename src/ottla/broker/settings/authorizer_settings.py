"""Builds the authorizer from `authorizer.class.name`, `super.users` and `allow.everyone.if.no.acl.found`. Pure."""

from typing import TYPE_CHECKING

from ottla.errors import ConfigError

if TYPE_CHECKING:
    from ottla.broker.settings.config import BrokerConfig
    from ottla.security.authorizer import Authorizer

AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
"""Names that turn ACLs on. The second one is the authorizer of Kafka's ZooKeeper mode; both mean the same here."""


def make_authorizer(config: "BrokerConfig") -> "Authorizer | None":
    """The authorizer, still without ACLs; None if none is configured. Raises ConfigError."""
    name = config.authorizer_class_name.strip()
    if not name:
        return None
    if name not in AUTHORIZERS:
        raise ConfigError(
            f"authorizer.class.name: {name} is not supported",
            f"use {AUTHORIZERS[0]}, or remove the setting to allow everything to everyone",
        )
    from ottla.security.authorizer import Authorizer
    from ottla.security.principal import parse_principal

    return Authorizer(
        super_users=[parse_principal(text) for text in config.super_users.split(";") if text.strip()],
        allow_everyone_if_no_acl_found=config.allow_everyone_if_no_acl_found,
    )
