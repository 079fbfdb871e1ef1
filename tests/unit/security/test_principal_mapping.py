"""Names of users from certificates, with the examples of Kafka's documentation (KIP-371)."""

import pytest

from ottla.errors import ConfigError
from ottla.security.principal_mapping import NoMatchingRule, principal_mapper

RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
        ("CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        ("cn=kafka1.example.com,ou=SME,o=mycp,l=fl,st=ca,c=us", "kafka1.example.com"),
        ("OU=nobody,O=mycp", "OU=nobody,O=mycp"),
    ],
)
def test_the_first_rule_that_matches_gives_the_name(subject: str, name: str) -> None:
    assert principal_mapper(RULES)(subject) == name


def test_names_are_whole_subjects_by_default() -> None:
    for rules in ("DEFAULT", "", "  "):
        assert principal_mapper(rules)("CN=alice,O=Example") == "CN=alice,O=Example"


def test_names_change_their_case() -> None:
    assert principal_mapper("RULE:^CN=(.*?),.*$/$1/U")("CN=alice,O=x") == "ALICE"
    assert principal_mapper("RULE:^CN=(.*?),.*$/$1/L")("CN=ALICE,O=x") == "alice"


def test_slashes_and_commas_can_be_part_of_a_rule() -> None:
    assert principal_mapper(r"RULE:^CN=(.*?),(.*?)\/x$/$1, $2/")("CN=a,b/x") == "a, b"


def test_a_subject_without_a_rule_has_no_name() -> None:
    with pytest.raises(NoMatchingRule, match=r"no rule of ssl.principal.mapping.rules applies to CN=a"):
        principal_mapper("RULE:^OU=(.*)$/$1/")("CN=a")


def test_a_group_that_does_not_exist_stays_as_it_is() -> None:
    assert principal_mapper("RULE:^CN=(.*)$/$1-$2/")("CN=a") == "a-$2"
    assert principal_mapper("RULE:^CN=(.*)$/$1-$١/")("CN=a") == "a-$١"


@pytest.mark.parametrize("rules", ["DEFAULT/L", "RULE:(.*)/$1", "RULE:(/x/", "LOWER", "RULE:a/b/X"])
def test_malformed_rules_are_rejected(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        principal_mapper(rules)
