"""`ottla config`: the settings of topics and brokers."""

import enum
from typing import Annotated

import typer
from rich.text import Text

from ottla.checks import unsigned_from_text
from ottla.cli.output import console, print_json, print_table
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, find_topics, open_admin, parse_pairs
from ottla.client.blocking import Admin
from ottla.config import HIDDEN, looks_secret
from ottla.errors import OttlaError

app = typer.Typer(help="Show and change the settings of topics and brokers.", no_args_is_help=True)


class Kind(enum.StrEnum):
    """Resources that have settings."""

    TOPIC = "topic"
    BROKER = "broker"


KindArgument = Annotated[Kind, typer.Argument(metavar="KIND", help="topic or broker.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Topic name or broker id.")]


@app.command()
def describe(
    kind: KindArgument,
    name: NameArgument,
    show_all: Annotated[
        bool, typer.Option("--all", "-a", metavar="", help="Include settings at their default.")
    ] = False,
    doc: Annotated[bool, typer.Option("--doc", metavar="", help="Show the documentation of each setting.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the settings of a topic or broker that differ from the default, or all of them with --all.

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
        console().print(
            f"{kind.value} {name}: all settings have their default value (show them with --all)", style="dim"
        )
        return
    columns = ["setting", "value", "from", *(["documentation"] if doc else [])]
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
    changes: Annotated[list[str], typer.Option("--set", metavar="NAME=VALUE", help="Set a value; repeatable.")] = [],  # noqa: B006
    reset: Annotated[
        list[str], typer.Option("--reset", metavar="NAME", help="Reset a setting to its default; repeatable.")
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic or broker.

    \b
    Examples:
      ottla config alter topic orders --set retention.ms=60000
      ottla config alter topic orders --reset cleanup.policy
      ottla config alter broker 0 --set log.cleaner.threads=2
    """
    wanted: dict[str, str | None] = dict(parse_pairs(changes, "--set"))
    for setting in reset:
        if setting in wanted:
            raise OttlaError(f"{setting} is in both --set and --reset", "choose one")
        wanted[setting] = None
    if not wanted:
        raise OttlaError("nothing to change", "pass --set NAME=VALUE or --reset NAME")
    with open_admin(bootstrap) as admin:
        _check(admin, kind, name)
        admin.alter_configs(kind.value, name, wanted)
    shown = {key: HIDDEN if value is not None and looks_secret(key) else value for key, value in wanted.items()}
    if as_json:
        print_json({"kind": kind.value, "name": name, "changed": shown})
    else:
        done = [f"{key}={value}" if value is not None else f"{key} reset" for key, value in shown.items()]
        console().print(f"changed {kind.value} {name}: {', '.join(done)}")


def _check(admin: Admin, kind: Kind, name: str) -> None:
    if kind == Kind.TOPIC:
        find_topics(admin, [name])
        return
    broker_id = unsigned_from_text(name)
    if broker_id is None:
        raise OttlaError(f"{name!r} is not a broker id", "list the brokers with: ottla cluster")
    ids = [node.node_id for node in admin.describe_cluster().brokers]
    if broker_id not in ids:
        raise OttlaError(f"broker {name} does not exist", f"broker ids: {', '.join(map(str, ids))}")
