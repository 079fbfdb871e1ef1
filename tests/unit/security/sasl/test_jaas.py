"""`sasl.jaas.config`: what it contains, and the errors for invalid values."""

import pytest

from ottla.errors import ConfigError
from ottla.security.sasl.jaas import parse_jaas_config

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_options_may_be_quoted_spread_over_lines_and_escaped() -> None:
    found = parse_jaas_config(f'{PLAIN} required\n  username="a b"\n  password="x\\"y;=" user_bob=secret;')
    assert found.options == {"username": "a b", "password": 'x"y;=', "user_bob": "secret"}
    assert found.mechanisms == ("PLAIN",)


def test_a_login_module_may_have_no_options() -> None:
    assert parse_jaas_config("org.example.ScramLoginModule required;").mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "does not begin with a login module"),
        (f"{PLAIN} username=hush;", "does not begin with a login module and a flag"),
        (f"{PLAIN} required username=hush", "does not end with a semicolon"),
        (f'{PLAIN} required username="hush;', "malformed at character"),
        (f"{PLAIN} required username hush;", "an option that is not NAME=VALUE"),
        (f"{PLAIN} required username=hush; {PLAIN} required;", "more than one login module"),
    ],
)
def test_errors_never_show_the_text(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        parse_jaas_config(text)
    assert "hush" not in str(caught.value)


def test_passwords_are_not_shown() -> None:
    assert "hush" not in repr(parse_jaas_config(f'{PLAIN} required password="hush";'))
