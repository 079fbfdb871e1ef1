"""Names of users from client certificates: `ssl.principal.mapping.rules` (KIP-371). Pure."""

import re
from collections.abc import Callable
from typing import NamedTuple

from ottla.errors import ConfigError

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,\s*|$)", re.DOTALL)
_SETTING = "ssl.principal.mapping.rules"
_GROUP = re.compile(r"\$([0-9])|\\(.)", re.DOTALL)
_JAVA_GROUP_NAME = re.compile(r"\(\?<(?![=!])")


class NoMatchingRule(Exception):
    """No rule applies to the subject of a certificate."""


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None
    """None for DEFAULT: the whole name."""
    replacement: str = ""
    case: str = ""


def principal_mapper(rules: str) -> Callable[[str], str]:
    """A function from the subject of a certificate to the name of the user. Raises ConfigError.

    The first rule that matches the whole subject is used. If none does, the function raises NoMatchingRule.

    >>> principal_mapper("RULE:^CN=(.*?),.*$/$1/L,DEFAULT")("CN=Alice,O=Example")
    'alice'
    """
    parsed = _parse(rules)

    def name_of(subject: str) -> str:
        for rule in parsed:
            if rule.pattern is None:
                return subject
            found = rule.pattern.fullmatch(subject)
            if found is not None:
                name = _replaced(rule.replacement, found)
                return name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
        raise NoMatchingRule(f"no rule of {_SETTING} applies to {subject}")

    return name_of


def _parse(rules: str) -> list[_Rule]:
    parsed = []
    position = 0
    text = rules.strip() or "DEFAULT"
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise ConfigError(
                f"Invalid value {rules} for configuration {_SETTING}: no rule at {text[position : position + 40]!r}",
                "A rule is DEFAULT or RULE:pattern/replacement/ with an optional L or U.",
            )
        position = found.end()
        if found[1]:
            parsed.append(_Rule(None))
            continue
        try:
            pattern = re.compile(_JAVA_GROUP_NAME.sub("(?P<", found[2]))
        except re.error as error:
            raise ConfigError(
                f"{_SETTING}: {found[2]} is not a regular expression: {error}",
                "Escape special characters of the pattern with a backslash.",
            ) from None
        parsed.append(_Rule(pattern, found[3], found[4]))
    return parsed


def _replaced(replacement: str, found: re.Match[str]) -> str:
    """The replacement with the match's groups filled in. References to groups that do not exist stay as they are."""

    def part(group: re.Match[str]) -> str:
        if group[2]:
            return group[2]
        return (found[int(group[1])] or "") if int(group[1]) <= found.re.groups else group[0]

    return _GROUP.sub(part, replacement)
