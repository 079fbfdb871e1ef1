"""Mistakes in admin calls raise an error with a hint, before anything is sent."""

from collections.abc import Callable
from typing import Any

import pytest

from ottla import Admin, ArgumentError, NewTopic
from ottla.client.core.model import LATEST

NOBODY = "127.0.0.1:1"

MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "describe one": (lambda a: a.describe_topics("ab"), "topics must be a list of names, not the one name 'ab'"),
    "count one": (lambda a: a.count_records("ab"), "topics must be a list of names, not the one name 'ab'"),
    "delete one": (lambda a: a.delete_topics("ab"), "topics must be a list of names, not the one name 'ab'"),
    "delete numbers": (lambda a: a.delete_topics([1]), "topics must be a list of names, not of int: 1"),
    "create one": (lambda a: a.create_topics(NewTopic("ab")), "topics must be a list, not NewTopic"),
    "create names": (lambda a: a.create_topics(["ab"]), "not a topic to create: 'ab'"),
    "a text": (
        lambda a: a.create_topic("ab", partitions="3"),
        "partitions of topic ab must be a whole number, not '3'",
    ),
    "groups": (lambda a: a.describe_groups("ab"), "groups must be a list of names, not the one name 'ab'"),
    "delete a group": (lambda a: a.delete_groups("ab"), "groups must be a list of names, not the one name 'ab'"),
    "find one": (lambda a: a.find_coordinators("ab"), "groups must be a list of names, not the one name 'ab'"),
    "one state": (lambda a: a.list_groups(states="Stable"), "states must be a list of names, not the one name"),
    "one member": (lambda a: a.remove_members("g", member_ids="ab"), "member_ids must be a list of names, not the one"),
    "fence one": (lambda a: a.fence_producers("ab"), "transactional ids must be a list of names, not the one"),
    "describe an id": (lambda a: a.describe_transactions("ab"), "transactional ids must be a list of names"),
    "a topic's offset": (lambda a: a.list_offsets({"ab": LATEST}), "not a partition: 'ab'"),
    "a partition": (lambda a: a.list_offsets(("ab", 0)), "wanted must be a dict by partition"),
    "records": (lambda a: a.delete_records([("ab", 0)]), "before must be a dict by partition"),
    "offsets": (lambda a: a.alter_group_offsets("g", [("ab", 0)]), "offsets must be a dict by partition"),
    "forget": (lambda a: a.delete_group_offsets("g", ["ab"]), "not a partition: 'ab'"),
    "a feature": (lambda a: a.update_features("transaction.version"), "levels must be a dict, not 'transaction"),
    "a level": (lambda a: a.update_features({"f": "2"}), "the level of f must be a whole number, not '2'"),
    "list None": (lambda a: a.describe_topics(None), "topics must be a list of names, not None"),
    "a negative offset": (
        lambda a: a.alter_group_offsets("g", {("ab", 0): -1}),
        "the offset for ab-0 must be at least 0",
    ),
    "no password": (lambda a: a.upsert_user_scram_credential("ann", ""), "the password of ann is empty"),
    "a mechanism": (lambda a: a.delete_user_scram_credential("ann", mechanism="MD5"), "'MD5' is not a SCRAM mechanism"),
    "a kind": (lambda a: a.describe_configs("topics", "ab"), "'topics' is not a kind of config resource"),
    "no entity": (lambda a: a.alter_client_quotas({}, {"producer_byte_rate": 1.0}), "a quota needs an entity"),
    "an entity": (lambda a: a.alter_client_quotas({"host": "x"}, {}), "there are no quotas for a 'host'"),
    "look at": (lambda a: a.list_group_offsets("g", ["ab"]), "not a partition: 'ab'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_an_error_before_anything_is_sent(name: str) -> None:
    """One name in place of a list would be taken letter by letter: `delete_topics("ab")` must not delete a and b."""
    mistake, said = MISTAKES[name]
    with Admin(bootstrap_servers=NOBODY) as admin, pytest.raises(ArgumentError, match=said):
        mistake(admin)
