"""Which settings apply to a listener and to a mechanism of it. Pure.

The most specific one wins: `listener.name.<listener>.<mechanism>.<setting>`, then `listener.name.<listener>.<setting>`,
then `<setting>`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ottla.broker.settings.security_settings import SecurityConfig
from ottla.config import Setting, settings_of
from ottla.errors import ConfigError
from ottla.security.quota_config import QuotaConfig

if TYPE_CHECKING:
    from ottla.security.sasl.jaas import JaasConfig

PREFIX = "listener.name."
SECURITY_SETTINGS = settings_of(SecurityConfig)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
RATE_SETTING = "max.connection.creation.rate"
LISTENER_SETTINGS = {**SECURITY_SETTINGS, RATE_SETTING: settings_of(QuotaConfig)[RATE_SETTING]}
_TLS_NAME = re.compile(r"(?<![\w./-])ssl(\.[a-z]+)+")
OVERRIDABLE = ("ssl.", "sasl.", "connections.max.reauth.ms", "connection.failed.authentication.delay.ms", RATE_SETTING)


def listener_setting(name: str) -> Setting | None:
    """The declaration of a setting for one listener; None if there is no such setting.

    >>> listener_setting("listener.name.internal.ssl.client.auth").doc[:30]
    'Whether clients need a certifi'
    """
    if not name.startswith(PREFIX):
        return None
    _, _, rest = name.removeprefix(PREFIX).partition(".")
    for mechanism in MECHANISMS:
        rest = rest.removeprefix(mechanism.lower() + ".")
    found = LISTENER_SETTINGS.get(rest)
    return replace(found, name=name) if found is not None and rest.startswith(OVERRIDABLE) else None


def listener_of(name: str) -> str:
    """The listener that a setting is for, as it is written in the setting."""
    return name.removeprefix(PREFIX).partition(".")[0]


def check_listener_prefix(name: str) -> None:
    """Raises ConfigError for a listener in upper case: Kafka would ignore it, and a protection would be missing."""
    listener = listener_of(name)
    if name.startswith(PREFIX) and listener != listener.lower():
        raise ConfigError(
            f"{name} has no effect: the name of the listener must be in lower case",
            f"Write {PREFIX}{listener.lower()}{name.removeprefix(PREFIX + listener)}.",
        )


class ListenerSettings:
    """The security settings of one listener."""

    def __init__(self, texts: Mapping[str, str], listener: str) -> None:
        """`texts` are all settings of the broker as text, with those that were changed at run time."""
        self._texts = texts
        self._prefix = f"{PREFIX}{listener.lower()}."
        self.listener = listener

    def text(self, name: str, mechanism: str | None = None) -> str | None:
        """None if it is not set."""
        for prefix in self._prefixes(mechanism):
            if prefix + name in self._texts:
                return self._texts[prefix + name]
        return self._texts.get(name)

    def value(self, name: str, mechanism: str | None = None) -> Any:
        """With the default if it is not set."""
        setting, text = SECURITY_SETTINGS[name], self.text(name, mechanism)
        return setting.default if text is None else setting.parse(text)

    def tls(self, *, uses_sasl: bool = False) -> dict[str, str | None]:
        """The `ssl.*` settings that are set, for `security/tls.py`."""
        found = {name: self.text(name) for name in SECURITY_SETTINGS if name.startswith("ssl.")}
        if uses_sasl:
            # Where clients log in anyway, they need a certificate only if the listener itself says so (KIP-684).
            found["ssl.client.auth"] = self._texts.get(f"{self._prefix}ssl.client.auth")
        return found

    def named(self, text: str) -> str:
        """A text about `ssl.*` settings, with the names under which they are set for this listener."""
        set_here = {name for name in SECURITY_SETTINGS if self._prefix + name in self._texts}
        return _TLS_NAME.sub(lambda found: self._prefix * (found[0] in set_here) + found[0], text)

    def jaas(self, mechanism: str) -> "JaasConfig | None":
        """The login module of a mechanism. Raises ConfigError if it is for another one."""
        from ottla.security.sasl.jaas import MODULES, parse_jaas_config

        name = "sasl.jaas.config"
        used = next((prefix + name for prefix in self._prefixes(mechanism) if prefix + name in self._texts), name)
        text = self._texts.get(used)
        if text is None:
            return None
        found = parse_jaas_config(text, used)
        if mechanism not in found.mechanisms:
            if used != f"{self._prefix}{mechanism.lower()}.{name}":
                return None  # a general one, for another mechanism
            module = next(module for module, names in MODULES.items() if mechanism in names)
            raise ConfigError(f"{used}: {found.module} is not a login module for {mechanism}", f"Use …{module}.")
        return found

    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms to offer. Raises ConfigError if none of them is supported."""
        enabled: tuple[str, ...] = self.value("sasl.enabled.mechanisms")
        supported = tuple(name for name in enabled if name in MECHANISMS)
        if not supported:
            given = ", ".join(enabled) or "no mechanism"
            raise ConfigError(
                f"listener {self.listener} uses SASL with {given}, which is not supported",
                f"Set sasl.enabled.mechanisms to some of {', '.join(MECHANISMS)}.",
            )
        return supported

    def _prefixes(self, mechanism: str | None) -> tuple[str, ...]:
        return (self._prefix,) if mechanism is None else (f"{self._prefix}{mechanism.lower()}.", self._prefix)
