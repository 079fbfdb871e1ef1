"""Reads `sasl.jaas.config`, the setting in which Kafka keeps user names and passwords. Pure."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from ottla.errors import ConfigError

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[;=]|[^\s;="\']+)')
_FLAGS = ("required", "requisite", "sufficient", "optional")
_HINT = 'Write: MODULE required username="NAME" password="PASSWORD"; with the semicolon at the end.'

MODULES: Mapping[str, tuple[str, ...]] = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}
"""The mechanisms of Kafka's login modules, without their packages."""


class JaasConfig(NamedTuple):
    """One login module with its options."""

    module: str
    """The name of its class, with its package."""
    options: Mapping[str, str]

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that the module supports."""
        return MODULES.get(self.module.rpartition(".")[2], ())

    def __repr__(self) -> str:
        # Never the values: they are secrets.
        return f"JaasConfig({self.module}, {', '.join(self.options)})"


def parse_jaas_config(text: str, setting: str = "sasl.jaas.config") -> JaasConfig:
    """Raises ConfigError, without the text: it holds passwords.

    >>> parse_jaas_config('org.apache.kafka.common.security.plain.PlainLoginModule required username="a";').options
    {'username': 'a'}
    """
    tokens = []
    position = 0
    text = text.strip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ConfigError(f"{setting} is malformed at character {position + 1}", _HINT)
        tokens.append(found[1])
        position = found.end()
    if len(tokens) < 3 or tokens[1].lower() not in _FLAGS:
        raise ConfigError(f"{setting} does not begin with a login module and a flag such as required", _HINT)
    if tokens[-1] != ";":
        raise ConfigError(f"{setting} does not end with a semicolon", _HINT)
    module, options, rest = tokens[0], {}, tokens[2:-1]
    if ";" in rest:
        raise ConfigError(f"{setting} has more than one login module", "Use one setting for each mechanism.")
    if len(rest) % 3 or any(equals != "=" for equals in rest[1::3]):
        raise ConfigError(f"{setting} has an option that is not NAME=VALUE", _HINT)
    for name, value in zip(rest[::3], rest[2::3], strict=True):
        options[name] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value
    return JaasConfig(module, options)
