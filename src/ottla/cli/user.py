"""`ottla user`: users that log in with SCRAM."""

import enum
import getpass
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.output import console, print_json, print_table
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, open_admin
from ottla.errors import OttlaError
from ottla.security.sasl.scram_math import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_MECHANISMS

app = typer.Typer(help="List, add and delete users that log in with SCRAM.", no_args_is_help=True)


class Mechanism(enum.StrEnum):
    """SCRAM with either hash."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
MechanismOption = Annotated[
    Mechanism, typer.Option("--mechanism", "-m", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512.")
]


@app.command("list")
def list_users(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the users that log in with SCRAM.

    \b
    Examples:
      ottla user list
      ottla user list --json
    """
    with open_admin(bootstrap) as admin:
        found = admin.describe_user_scram_credentials()
    rows = [(user, info.mechanism, info.iterations) for user, infos in found.items() for info in infos]
    if as_json:
        print_json([{"user": user, "mechanism": name, "iterations": count} for user, name, count in rows])
    elif not rows:
        console().print("no user logs in with SCRAM (add one with: ottla user add NAME)", style="dim")
    else:
        print_table(["user", "mechanism", "iterations"], rows, right=["iterations"])


@app.command()
def add(
    name: Name,
    mechanism: MechanismOption = Mechanism.SCRAM_SHA_512,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file", metavar="FILE", help="Read the password from the first line of FILE; - for stdin."
        ),
    ] = None,
    iterations: Annotated[
        int, typer.Option(min=MIN_ITERATIONS, max=MAX_ITERATIONS, metavar="N", help="Rounds of key derivation.")
    ] = MIN_ITERATIONS,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="Write to a broker's data directory instead; the broker may be stopped."
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata", metavar="PATH", help="Write to a cluster's metadata instead: a file or an etcd address."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Add a user, or change its password. Prompts for the password unless it is in a file or piped in.

    Before the first start, pass the --data or --metadata of `ottla serve`.

    \b
    Examples:
      ottla user add alice
      ottla user add alice --password-file alice.txt
      pass show kafka/alice | ottla user add alice --mechanism SCRAM-SHA-256
      ottla user add admin --data ottla-data
      ottla user add admin --metadata ottla-data/cluster/metadata.sqlite
    """
    password = read_password(name, password_file)
    if data is not None or metadata is not None:
        _add_to_files(name, password, mechanism, iterations, data, metadata)
    else:
        with open_admin(bootstrap) as admin:
            admin.upsert_user_scram_credential(name, password, mechanism=mechanism.value, iterations=iterations)
    if as_json:
        print_json({"user": name, "mechanism": mechanism.value, "iterations": iterations})
    else:
        console().print(f"user {name} can log in with {mechanism.value}")


@app.command()
def delete(
    name: Name,
    mechanism: Annotated[
        Mechanism | None, typer.Option("--mechanism", "-m", metavar="NAME", help="Only this mechanism. Default: all.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete a user's credentials. Existing connections stay open until they have to reauthenticate.

    \b
    Examples:
      ottla user delete alice
      ottla user delete alice --mechanism SCRAM-SHA-256
    """
    with open_admin(bootstrap) as admin:
        found = admin.describe_user_scram_credentials([name]).get(name, [])
        deleted = [info.mechanism for info in found if mechanism is None or info.mechanism == mechanism.value]
        if not deleted:
            what = "no credentials" if mechanism is None else f"no credential for {mechanism.value}"
            raise OttlaError(f"user {name} has {what}", "list the users with: ottla user list")
        for each in deleted:
            admin.delete_user_scram_credential(name, mechanism=each)
    if as_json:
        print_json({"user": name, "deleted": deleted})
    else:
        console().print(f"user {name} can no longer log in with {' and '.join(deleted)}")


def read_password(user: str, file: Path | None) -> str:
    """From a file, from standard input, or typed twice on the terminal. Never from the command line, which others can
    see."""
    if file is not None and str(file) != "-":
        with open(file, encoding="utf-8") as opened:
            password = opened.readline()
    elif file is not None or not sys.stdin.isatty():
        password = sys.stdin.readline()
    else:
        password = getpass.getpass(f"Password of {user}: ")
        if getpass.getpass("Again: ") != password:
            raise OttlaError("the passwords differ", "nothing was changed; try again")
    password = password.rstrip("\r\n")
    if not password:
        raise OttlaError(f"the password of {user} is empty", "type one, or pass it with --password-file")
    return password


def _add_to_files(
    name: str, password: str, mechanism: Mechanism, iterations: int, data: Path | None, metadata: str | None
) -> None:
    import asyncio

    from ottla.broker.authentication.scram_users import NewUser, add_users_to
    from ottla.broker.one_host import metadata_file, metadata_location

    user = NewUser(name, password, SCRAM_MECHANISMS[mechanism.value], iterations)
    values = {} if data is None else {"log.dirs": str(data)}
    if metadata is not None:
        values["ottla.metadata"] = metadata
    is_cluster = data is not None and os.path.exists(metadata_file(str(data)))
    asyncio.run(add_users_to(metadata_location(values, is_cluster=is_cluster), [user], replace=True))
