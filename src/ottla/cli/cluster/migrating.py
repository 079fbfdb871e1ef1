"""`ottla cluster migrate-metadata`: moves the metadata of a stopped cluster from a file to etcd, or back."""

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.output import console, error_console, plural, print_json
from ottla.cli.session import AsJson
from ottla.errors import OttlaError
from ottla.metadata.opening import DATABASE_FILE

if TYPE_CHECKING:
    from ottla.metadata.etcd.location import EtcdAccess
    from ottla.metadata.migration import Migrated

SESSION_TIMEOUT_MS = 10_000


def migrate_metadata(
    from_location: Annotated[
        str, typer.Option("--from", metavar="LOCATION", help="Current location: a file, or etcd://…")
    ],
    to_location: Annotated[
        str, typer.Option("--to", metavar="LOCATION", help="New location: a file, or etcd://HOST:PORT,…/PREFIX.")
    ],
    replace: Annotated[
        bool, typer.Option("--replace", metavar="", help="Overwrite EVERYTHING in the target, if it is not empty.")
    ] = False,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="Broker settings file, for ottla.etcd.*: how to log in to etcd."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Move the metadata of a cluster to another store. All brokers must be stopped.

    Topics, settings, ACLs, users, quotas, in-sync sets and epochs are copied
    atomically and compared. Records stay where they are. Afterwards start the
    brokers with --metadata set to the new location; they reject the old one. To
    go back, stop them and swap --from and --to.

    \b
    Examples:
      ottla cluster migrate-metadata --from data/cluster --to etcd://e1:2379/ottla
      ottla cluster migrate-metadata --from etcd://e1:2379/ottla --to data/cluster
    """
    access = _access(config)
    source, target = _checked_source(from_location), _location(to_location)
    if source == target:
        raise OttlaError("--from and --to are the same", "Pass two different locations.")
    errors = error_console()

    def report(text: str) -> None:
        if not as_json:
            errors.print(f"{text} …", style="dim")

    result = asyncio.run(_migrate(source, target, access, replace, report))
    if as_json:
        print_json(
            {
                "from": source,
                "to": target,
                "keys": result.keys,
                "topics": result.topics,
                "removed": result.removed,
                "verified": True,
            }
        )
        return
    out = console()
    done = "had" if result.was_complete else "has"
    out.print(f"{target} {done} all {result.keys} keys of {plural(result.topics, 'topic')}; each was compared")
    out.print(f"start the brokers with: --metadata {target}")
    out.print(f"to go back: ottla cluster migrate-metadata --from {target} --to {source}", style="dim")


async def _migrate(
    source: str, target: str, access: "EtcdAccess", replace: bool, report: Callable[[str], None]
) -> "Migrated":
    from ottla.metadata.migration import migrate
    from ottla.metadata.opening import open_store
    from ottla.metadata.store import SessionExpired, StoreUnavailable

    old = open_store(source, access, session_timeout_ms=SESSION_TIMEOUT_MS)
    new = open_store(target, access, session_timeout_ms=SESSION_TIMEOUT_MS)
    try:
        await old.start()
        await new.start()
        return await migrate(old, new, (source, target), replace=replace, report=report)
    except (StoreUnavailable, SessionExpired) as error:
        raise OttlaError(f"the migration was interrupted: {error or 'a session expired'}", "Run it again.") from None
    finally:
        await old.close()
        await new.close()


def _location(text: str) -> str:
    """The location as brokers use it: a directory means the metadata file in it."""
    from ottla.metadata.etcd.location import is_etcd, parse_location

    if is_etcd(text):
        return str(parse_location(text))
    if "://" in text:
        raise OttlaError(f"{text} is neither a file nor etcd://HOST:PORT/PREFIX", "See --help for examples.")
    if os.path.isdir(text):
        text = os.path.join(text, DATABASE_FILE)
    parent = os.path.dirname(text) or "."
    if not os.path.isdir(parent):
        raise OttlaError(f"there is no directory {parent}", "Create it first.")
    return text


def _checked_source(text: str) -> str:
    from ottla.metadata.etcd.location import is_etcd

    location = _location(text)
    if not is_etcd(location) and not os.path.exists(location):
        raise OttlaError(f"there is no metadata at {location}", "Check --from: it is the --metadata of the brokers.")
    return location


def _access(path: str | None) -> "EtcdAccess":
    from ottla.cli.serve.options import read_config
    from ottla.config import parse
    from ottla.metadata.config import ControllerConfig
    from ottla.metadata.opening import access_of

    values = {} if path is None else read_config(path)
    return access_of(parse(ControllerConfig, {k: v for k, v in values.items() if k.startswith("ottla.etcd.")}))
