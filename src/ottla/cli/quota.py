"""`ottla quota`: limits on the rates of users, clients and addresses."""

import re
from typing import Annotated

import typer

from ottla.cli.output import console, print_json, print_table
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, open_admin, parse_pairs
from ottla.client.core.model import ClientQuota
from ottla.errors import OttlaError, did_you_mean
from ottla.security.quota_entities import (
    CLIENT_ID,
    CLIENT_QUOTAS,
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    IP_QUOTAS,
    REQUEST_PERCENTAGE,
    USER,
    WHOLE_NUMBERS,
)

app = typer.Typer(help="Show and change quotas: rate limits for users and clients.", no_args_is_help=True)

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Quotas of this user.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Quotas of clients with this id.")]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="Quotas of connections from this address.")]
DefaultUser = Annotated[
    bool, typer.Option("--default-user", metavar="", help="Quotas of every user without their own.")
]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", metavar="", help="Quotas of every client id without its own.")
]
DefaultIp = Annotated[bool, typer.Option("--default-ip", metavar="", help="Quotas of every address without its own.")]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_AMOUNT = re.compile(r"([0-9]{1,30}(?:\.[0-9]+)?)\s*([kmg]i?|)b?(?:/s)?", re.IGNORECASE)
_PLAIN = re.compile(r"([0-9]{1,30}(?:\.[0-9]+)?)\s*(%|/s|)")
SEE_UNITS = {
    REQUEST_PERCENTAGE: "write a percentage of the event loop's time, for example 25%",
    CONTROLLER_MUTATION_RATE: "write partitions per second, for example 5/s",
    CONNECTION_CREATION_RATE: "write connections per second, for example 20/s",
}


@app.command(name="set")
def set_quotas(
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA=VALUE", help="For example producer_byte_rate=10MB/s.")],
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Set quotas of a user, a client id, both, or an address.

    \b
    producer_byte_rate        bytes/s sent to each broker: 10MB/s, 512KiB/s, 9000
    consumer_byte_rate        bytes/s read from each broker
    request_percentage        share of each broker's event loop: 25%
    controller_mutation_rate  partitions created and deleted per second: 5/s
    connection_creation_rate  new connections per second of an address: 20/s

    \b
    Examples:
      ottla quota set --user alice producer_byte_rate=10MB/s
      ottla quota set --default-user --client-id reports request_percentage=10%
      ottla quota set --default-ip connection_creation_rate=20/s
    """
    entity = _named(_entity(user, client_id, ip, default_user, default_client_id, default_ip))
    known = IP_QUOTAS if IP in entity else CLIENT_QUOTAS
    values = {name: parse_quota(name, text, known) for name, text in parse_pairs(quotas, "QUOTA").items()}
    with open_admin(bootstrap) as admin:
        admin.alter_client_quotas(entity, values)
    if as_json:
        print_json({"entity": entity, "quotas": values})
    else:
        shown = ", ".join(f"{name}={quota_text(name, value)}" for name, value in values.items())
        console().print(f"{entity_text(entity)}: {shown}", highlight=False)


@app.command(name="list")
def list_quotas(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show all quotas, or those of a user, a client id or an address. The most specific one applies to a client.

    \b
    Examples:
      ottla quota list
      ottla quota list --user alice --json
    """
    entity = _entity(user, client_id, ip, default_user, default_client_id, default_ip)
    with open_admin(bootstrap) as admin:
        found = admin.describe_client_quotas(entity)
    if as_json:
        print_json([{"entity": dict(each.entity), "quotas": dict(each.quotas)} for each in found])
    elif not found:
        console().print("no quotas", style="dim")
    else:
        rows = [row for each in found for row in _rows(each)]
        print_table(["user", "client id", "ip", "quota", "value"], rows)


@app.command(name="remove")
def remove_quotas(
    quotas: Annotated[
        list[str] | None, typer.Argument(metavar="QUOTA", help="Quotas to remove. Default: all of the entity.")
    ] = None,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClientId = False,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Remove quotas of a user, a client id, both, or an address.

    \b
    Examples:
      ottla quota remove --user alice producer_byte_rate
      ottla quota remove --default-client-id
    """
    entity = _named(_entity(user, client_id, ip, default_user, default_client_id, default_ip))
    for name in quotas or ():
        _check_name(name, IP_QUOTAS if IP in entity else CLIENT_QUOTAS)
    with open_admin(bootstrap) as admin:
        found = [dict(each.quotas) for each in admin.describe_client_quotas(entity, strict=True)]
        present = found[0] if found else {}
        missing = [name for name in quotas or () if name not in present]
        if missing or not present:
            what = f"no quota {missing[0]}" if missing else "no quotas"
            raise OttlaError(f"{entity_text(entity)} has {what}", "list them with: ottla quota list")
        removed = list(quotas or present)
        admin.alter_client_quotas(entity, dict.fromkeys(removed))
    if as_json:
        print_json({"entity": entity, "removed": removed})
    else:
        console().print(f"{entity_text(entity)}: removed {', '.join(removed)}", highlight=False)


def _entity(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    default_user: bool,
    default_client_id: bool,
    default_ip: bool,
) -> dict[str, str | None]:
    entity: dict[str, str | None] = {}
    for entity_type, name, is_default in (
        (USER, user, default_user),
        (CLIENT_ID, client_id, default_client_id),
        (IP, ip, default_ip),
    ):
        if name is not None and is_default:
            raise OttlaError(f"--{entity_type} cannot be combined with --default-{entity_type}", "choose one")
        if name == "":
            raise OttlaError(f"--{entity_type} is empty", f"name one, or pass --default-{entity_type}")
        if name is not None or is_default:
            entity[entity_type] = name
    if IP in entity and len(entity) > 1:
        raise OttlaError("--ip cannot be combined with a user or client id", "set them one after the other")
    return entity


def _named(entity: dict[str, str | None]) -> dict[str, str | None]:
    """The entity. Raises if it is empty: the change would apply to nothing."""
    if not entity:
        raise OttlaError(
            "no user, client id or address", "pass --user NAME, --client-id ID or --ip ADDRESS, or a --default-… option"
        )
    return entity


def _check_name(name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        hint = did_you_mean(name, known, f"choose from: {', '.join(known)}")
        raise OttlaError(f"{name!r} is not a quota of this entity", hint)


def parse_quota(name: str, text: str, known: tuple[str, ...] = CLIENT_QUOTAS + IP_QUOTAS) -> float:
    """The value of a quota as a user writes it.

    >>> parse_quota("producer_byte_rate", "10MB/s"), parse_quota("request_percentage", "12.5%")
    (10000000.0, 12.5)
    """
    _check_name(name, known)
    in_bytes = name.endswith("_byte_rate")
    match = (_AMOUNT if in_bytes else _PLAIN).fullmatch(text.strip())
    allowed = {REQUEST_PERCENTAGE: ("", "%")}.get(name, ("", "/s"))
    if match is None or (not in_bytes and match[2] not in allowed):
        hint = SEE_UNITS.get(name, "write bytes per second, for example 10MB/s, 512KiB/s or 1048576")
        raise OttlaError(f"invalid value {text!r} for {name}", hint)
    value = float(match[1]) * (_UNITS[match[2].lower()] if in_bytes else 1)
    if value <= 0:
        raise OttlaError(f"{name} must be greater than 0, not {text}", "remove a limit with: ottla quota remove")
    if name in WHOLE_NUMBERS and value % 1:
        raise OttlaError(f"{name} must be a whole number, not {value:g}", "round it")
    return value


def quota_text(name: str, value: float) -> str:
    """As `parse_quota` accepts it.

    >>> quota_text("producer_byte_rate", 10_000_000), quota_text("request_percentage", 12.5)
    ('10MB/s', '12.5%')
    """
    if name == REQUEST_PERCENTAGE:
        return f"{value:g}%"
    if not name.endswith("_byte_rate"):
        return f"{value:g}/s"
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if value >= factor and value % (factor / 1000) == 0:
            return f"{value / factor:.3f}".rstrip("0").rstrip(".") + f"{unit}/s"
    return f"{int(value)}B/s"


def entity_text(entity: dict[str, str | None]) -> str:
    return ", ".join(f"default {name}" if value is None else f"{name} {value}" for name, value in entity.items())


def _rows(quota: ClientQuota) -> list[list[str]]:
    names = [
        (quota.entity[entity_type] or "<default>") if entity_type in quota.entity else ""
        for entity_type in (USER, CLIENT_ID, IP)
    ]
    return [[*names, name, quota_text(name, value)] for name, value in sorted(quota.quotas.items())]
