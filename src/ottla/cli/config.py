"""`ottla config`: the settings of topics and brokers."""

import enum
from typing import Annotated

import typer
from rich.text import Text

from ottla.cli.output import console, print_json, print_table
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, find_topics, open_admin, parse_pairs
from ottla.client.blocking import Admin
from ottla.errors import OttlaError

app = typer.Typer(help="Show and change the settings of topics and brokers.", no_args_is_help=True)


class Kind(enum.StrEnum):
    """What has settings."""

    TOPIC = "topic"
    BROKER = "broker"


KindArgument = Annotated[Kind, typer.Argument(metavar="KIND", help="topic or broker.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name, or the broker's id.")]


@app.command()
def describe(
    kind: KindArgument,
    name: NameArgument,
    show_all: Annotated[bool, typer.Option("--all", "-a", metavar="", help="Show defaults too.")] = False,
    doc: Annotated[bool, typer.Option("--doc", metavar="", help="Say what each setting does.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show settings: those that were changed, or all of them.

    \b
    Examples:
      ottla config describe topic orders
      ottla config describe broker 0 --all --doc
    """
    with open_admin(bootstrap) as admin:
        _check(admin, kind, name)
        entries = admin.describe_configs(kind.value, name, with_documentation=doc)
    shown = [entry for entry in entries if show_all or not entry.is_default]
    if as_json:
        print_json(
            [
                {
                    "name": entry.name,
                    "value": entry.value,
                    "source": entry.source,
                    "type": entry.config_type,
                    "read_only": entry.is_read_only,
                    "sensitive": entry.is_sensitive,
                }
                | ({"documentation": entry.documentation} if doc else {})
                for entry in shown
            ]
        )
        return
    if not shown:
        console().print(f"{kind.value} {name}: every setting is at its default (--all shows them)", style="dim")
        return
    columns = ["setting", "value", "from", *(["meaning"] if doc else [])]
    rows = []
    for entry in shown:
        value = Text("(secret)", style="dim") if entry.is_sensitive else Text(entry.value or "")
        source = Text(entry.source, style="dim" if entry.is_default else "")
        rows.append([entry.name, value, source, *([entry.documentation or ""] if doc else [])])
    print_table(columns, rows)


@app.command()
def alter(
    kind: KindArgument,
    name: NameArgument,
    changes: Annotated[
        list[str], typer.Option("--set", metavar="NAME=VALUE", help="A setting to change; may be given often.")
    ] = [],  # noqa: B006
    reset: Annotated[
        list[str], typer.Option("--reset", metavar="NAME", help="A setting to put back to its default.")
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change settings; the others stay as they are.

    \b
    Examples:
      ottla config alter topic orders --set retention.ms=60000
      ottla config alter topic orders --reset cleanup.policy
      ottla config alter broker 0 --set log.cleaner.threads=2
    """
    wanted: dict[str, str | None] = dict(parse_pairs(changes, "--set"))
    for setting in reset:
        if setting in wanted:
            raise OttlaError(f"{setting} is both set and reset", "give it once")
        wanted[setting] = None
    if not wanted:
        raise OttlaError("nothing to change", "give --set NAME=VALUE or --reset NAME")
    with open_admin(bootstrap) as admin:
        _check(admin, kind, name)
        admin.alter_configs(kind.value, name, wanted)
    if as_json:
        print_json({"kind": kind.value, "name": name, "changed": wanted})
    else:
        done = [f"{key}={value}" if value is not None else f"{key} reset" for key, value in wanted.items()]
        console().print(f"changed {kind.value} {name}: {', '.join(done)}")


def _check(admin: Admin, kind: Kind, name: str) -> None:
    if kind == Kind.TOPIC:
        find_topics(admin, [name])
        return
    if not name.isdigit():
        raise OttlaError(f"{name!r} is no broker id", "ottla cluster lists the brokers")
    ids = [node.node_id for node in admin.describe_cluster().brokers]
    if int(name) not in ids:
        raise OttlaError(f"there is no broker {name}", f"there are {', '.join(map(str, ids))}")
