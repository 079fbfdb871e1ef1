"""`ottla acl`: adds, lists and removes ACLs, and explains what they decide."""

import enum
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from ottla.cli.acl.rules import Options, bindings_of, check_principal, filters_of, parse_operation
from ottla.cli.output import CommandError, console, plural, print_json, print_table
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes, confirm, open_admin
from ottla.client.blocking import Admin
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.security.acls import WILDCARD, AccessControlEntry, AclBinding, ResourcePattern
from ottla.security.authorizer import Authorizer, Reason, Verdict
from ottla.security.principal import parse_principal
from ottla.security.resources import PatternType, PermissionType, Resource

app = typer.Typer(help="Show and change access control lists (ACLs): who may do what.", no_args_is_help=True)

Names = list[str]
Principals = Annotated[Names, typer.Option("--principal", metavar="USER", help="Only ACLs of this principal.")]
Topics = Annotated[Names, typer.Option("--topic", metavar="NAME", help="A topic; '*' for all. Repeatable.")]
Groups = Annotated[Names, typer.Option("--group", metavar="NAME", help="A group; '*' for all. Repeatable.")]
TransactionalIds = Annotated[
    Names, typer.Option("--transactional-id", metavar="ID", help="A transactional id; '*' for all. Repeatable.")
]
Cluster = Annotated[bool, typer.Option("--cluster", metavar="", help="The cluster.")]
Allowed = Annotated[
    Names, typer.Option("--allow-principal", metavar="USER", help="Who is allowed: User:NAME, or User:* for everyone.")
]
Denied = Annotated[
    Names,
    typer.Option("--deny-principal", metavar="USER", help="Who is denied. A deny rule overrides every allow rule."),
]
AllowHosts = Annotated[Names, typer.Option("--allow-host", metavar="IP", help="Allow only from this address.")]
DenyHosts = Annotated[Names, typer.Option("--deny-host", metavar="IP", help="Deny only from this address.")]
Operations = Annotated[
    Names, typer.Option("--operation", metavar="OP", help="read, write, describe, … (default: all). Repeatable.")
]
Producer = Annotated[
    bool, typer.Option("--producer", metavar="", help="All operations that a producer of the topics needs.")
]
Consumer = Annotated[
    bool,
    typer.Option("--consumer", metavar="", help="All operations that a consumer of the topics in the group needs."),
]
Idempotent = Annotated[
    bool, typer.Option("--idempotent", metavar="", help="With --producer: also idempotent-write on the cluster.")
]
NO_NAMES: Names = []


class NewPattern(enum.StrEnum):
    LITERAL = "literal"
    PREFIXED = "prefixed"


class Pattern(enum.StrEnum):
    LITERAL = "literal"
    PREFIXED = "prefixed"
    ANY = "any"
    MATCH = "match"


NewPatternType = Annotated[
    NewPattern,
    typer.Option(
        "--resource-pattern-type", metavar="TYPE", help="literal, or prefixed: all names that start with the given one."
    ),
]
PatternTypeFilter = Annotated[
    Pattern,
    typer.Option(
        "--resource-pattern-type",
        metavar="TYPE",
        help="literal, prefixed, any (both), or match: all ACLs that apply to the named resource.",
    ),
]


@app.command()
def add(
    topic: Topics = NO_NAMES,
    group: Groups = NO_NAMES,
    transactional_id: TransactionalIds = NO_NAMES,
    cluster: Cluster = False,
    pattern_type: NewPatternType = NewPattern.LITERAL,
    allow_principal: Allowed = NO_NAMES,
    deny_principal: Denied = NO_NAMES,
    allow_host: AllowHosts = NO_NAMES,
    deny_host: DenyHosts = NO_NAMES,
    operation: Operations = NO_NAMES,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Add ACLs. Existing ones are kept.

    \b
    Examples:
      ottla acl add --allow-principal User:alice --producer --topic orders
      ottla acl add --allow-principal User:bob --consumer --topic orders \\
        --group billing
      ottla acl add --allow-principal User:bob --operation read --topic shop. \\
        --resource-pattern-type prefixed
      ottla acl add --deny-principal User:eve --deny-host 10.0.0.7 --topic '*'
    """
    options = Options(
        topic,
        group,
        transactional_id,
        cluster,
        PatternType[pattern_type.name],
        allow_principal,
        deny_principal,
        allow_host,
        deny_host,
        [parse_operation(text) for text in operation],
        producer,
        consumer,
        idempotent,
    )
    bindings = bindings_of(options)
    with open_admin(bootstrap) as admin:
        admin.create_acls(bindings)
    _show(bindings, "added", as_json=as_json)


@app.command("list")
def list_acls(
    topic: Topics = NO_NAMES,
    group: Groups = NO_NAMES,
    transactional_id: TransactionalIds = NO_NAMES,
    cluster: Cluster = False,
    pattern_type: PatternTypeFilter = Pattern.ANY,
    principal: Principals = NO_NAMES,
    operation: Operations = NO_NAMES,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List ACLs: all of them, or those of a resource or principal.

    \b
    Examples:
      ottla acl list
      ottla acl list --topic orders --resource-pattern-type match
      ottla acl list --principal User:alice --json
    """
    options = Options(
        topic,
        group,
        transactional_id,
        cluster,
        PatternType[pattern_type.name],
        operations=[parse_operation(text) for text in operation],
    )
    with open_admin(bootstrap) as admin:
        found = {acl for each in filters_of(options, principal) for acl in admin.describe_acls(each)}
    _show(sorted(found), None, as_json=as_json)


@app.command()
def remove(
    topic: Topics = NO_NAMES,
    group: Groups = NO_NAMES,
    transactional_id: TransactionalIds = NO_NAMES,
    cluster: Cluster = False,
    pattern_type: PatternTypeFilter = Pattern.LITERAL,
    allow_principal: Allowed = NO_NAMES,
    deny_principal: Denied = NO_NAMES,
    allow_host: AllowHosts = NO_NAMES,
    deny_host: DenyHosts = NO_NAMES,
    operation: Operations = NO_NAMES,
    producer: Producer = False,
    consumer: Consumer = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Remove the ACLs that match. Asks for confirmation on a terminal.

    Without --allow-principal or --deny-principal, all ACLs of the resource are removed.

    \b
    Examples:
      ottla acl remove --allow-principal User:alice --producer --topic orders
      ottla acl remove --topic orders
    """
    options = Options(
        topic,
        group,
        transactional_id,
        cluster,
        PatternType[pattern_type.name],
        allow_principal,
        deny_principal,
        allow_host,
        deny_host,
        [parse_operation(text) for text in operation],
        producer,
        consumer,
    )
    if not options.resources():
        raise OttlaError("no resource", "name one with --topic, --group, --transactional-id or --cluster")
    filters = filters_of(options)
    with open_admin(bootstrap) as admin:

        def show() -> None:
            doomed = sorted({acl for each in filters for acl in admin.describe_acls(each)})
            _show(doomed, None, as_json=False)
            if not doomed:
                raise typer.Exit(1)

        confirm("Remove them?", yes, show)
        removed = admin.delete_acls(filters)
    _show(removed, "removed", as_json=as_json)


@app.command()
def check(
    principal: Annotated[str, typer.Option("--principal", metavar="USER", help="The principal to check: User:NAME.")],
    operation: Annotated[str, typer.Option("--operation", metavar="OP", help="read, write, describe, …")],
    topic: Annotated[str, typer.Option("--topic", metavar="NAME", help="A topic.")] = "",
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="A group.")] = "",
    transactional_id: Annotated[str, typer.Option("--transactional-id", metavar="ID", help="A transactional id.")] = "",
    cluster: Cluster = False,
    host: Annotated[
        str, typer.Option("--host", metavar="IP", help="The client's address (default: one that no ACL names).")
    ] = WILDCARD,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Check whether a principal may do something, and show the rule that decides. Exits with status 1 if not.

    \b
    Examples:
      ottla acl check --principal User:alice --operation write --topic orders
      ottla acl check --principal User:bob --operation read --group billing \\
        --host 10.0.0.7
    """
    options = Options(
        [topic] if topic else (), [group] if group else (), [transactional_id] if transactional_id else (), cluster
    )
    if len(options.resources()) != 1:
        raise OttlaError("name exactly one resource", "pass one of --topic, --group, --transactional-id and --cluster")
    ((kind, name, _),) = options.resources()
    asked = parse_operation(operation)
    who = parse_principal(check_principal(principal))
    with open_admin(bootstrap) as admin:
        verdict = _authorizer(admin).decide(who, host, asked, Resource(kind, name))
    if as_json:
        print_json(
            {
                "allowed": verdict.is_allowed,
                "reason": verdict.reason.name.lower(),
                "acl": None if verdict.acl is None else _acl_json(verdict.acl),
            }
        )
    else:
        resource = kind.name.lower().replace("_", " ") + ("" if cluster else f" {name}")
        answer = Text("yes" if verdict.is_allowed else "no", style="green" if verdict.is_allowed else "red")
        may = "may" if verdict.is_allowed else "may not"
        console().print(answer.append(f": {who} {may} {asked.name} {resource}", style="default"))
        console().print(Text(_explain(verdict)))
    if not verdict.is_allowed:
        raise typer.Exit(1)


def _authorizer(admin: Admin) -> Authorizer:
    """An authorizer with the brokers' ACLs and settings: it decides as they do."""
    try:
        acls: dict[ResourcePattern, tuple[AccessControlEntry, ...]] = {}
        for pattern, entry in admin.describe_acls():
            acls[pattern] = (*acls.get(pattern, ()), entry)
    except KafkaError as error:
        if error.code is not ErrorCode.SECURITY_DISABLED:
            raise
        raise CommandError(
            "the broker has no authorizer: everyone may do everything", "turn ACLs on with authorizer.class.name"
        ) from None
    node = admin.describe_cluster().brokers[0]
    names = ["super.users", "allow.everyone.if.no.acl.found"]
    settings = {each.name: each.value for each in admin.describe_configs("broker", str(node.node_id), names=names)}
    users = (settings.get("super.users") or "").split(";")
    return Authorizer(
        acls,
        super_users=[parse_principal(user) for user in users if user.strip()],
        allow_everyone_if_no_acl_found=settings.get("allow.everyone.if.no.acl.found") == "true",
    )


def _explain(verdict: Verdict) -> str:
    if verdict.reason is Reason.SUPER_USER:
        return "decided by super.users: super users may do everything"
    if verdict.acl is not None:
        return f"decided by the ACL: {verdict.acl}"
    if verdict.reason is Reason.NO_MATCH:
        return "no ACL of this resource matches, so access is denied"
    if verdict.is_allowed:
        return "the resource has no ACLs, and allow.everyone.if.no.acl.found is true"
    return "the resource has no ACLs, so access is denied"


def _show(acls: Sequence[AclBinding], done: str | None, *, as_json: bool) -> None:
    if as_json:
        found = [_acl_json(acl) for acl in acls]
        print_json(found if done is None else {done: found})
        return
    if not acls:
        console().print("no ACL matches" if done is None else f"no ACL {done}", style="dim")
        return
    if done is not None:
        console().print(f"{done} {plural(len(acls), 'ACL')}")
    print_table(
        ["permission", "principal", "operation", "resource", "name", "pattern", "host"],
        [
            [
                Text(entry.permission.name.lower(), style="red" if entry.permission is PermissionType.DENY else ""),
                entry.principal,
                entry.operation.name.lower().replace("_", "-"),
                pattern.type.name.lower().replace("_", "-"),
                pattern.name,
                pattern.pattern_type.name.lower(),
                entry.host,
            ]
            for pattern, entry in acls
        ],
    )


def _acl_json(acl: AclBinding) -> dict[str, Any]:
    pattern, entry = acl
    return {
        "resource_type": pattern.type.name,
        "resource_name": pattern.name,
        "pattern_type": pattern.pattern_type.name,
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation.name,
        "permission": entry.permission.name,
    }
