"""`--command-config FILE` of every command that talks to brokers: a client.properties, as Kafka's own tools take it."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from ottla.cli.output import error_console
from ottla.client.core.foreign_settings import security_name
from ottla.client.core.settings import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from ottla.config import looks_secret, read_properties, settings_of
from ottla.errors import ConfigError

ENVIRONMENT = "OTTLA_CONFIG"
NAMES = ("--command-config", "--config")
"""Kafka's name, and a shorter one unless the command uses that for something else."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}|[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+")

OF_THE_COMMAND = {"bootstrap.servers", "group.id", "group.instance.id", "enable.auto.commit", "transactional.id"}
"""Ignored in the file, because the command sets them: the brokers and the group. A shared file may contain them."""

_from_file: dict[str, str] = {}
"""The settings of the file that this command line names; its path is stored under the name ""."""


def settings_from_file(kind: type[ClientConfig] = AdminConfig) -> dict[str, str]:
    """The settings of the file without those of other kinds of clients: one file serves all commands."""
    return for_kind(_from_file, kind)


def for_kind(settings: Mapping[str, str], kind: type[ClientConfig]) -> dict[str, str]:
    """Settings of a file, without those of other kinds of clients and those that the command decides."""
    elsewhere = {name for other in (ProducerConfig, ConsumerConfig) for name in settings_of(other)}
    dropped = (elsewhere - settings_of(kind).keys()) | OF_THE_COMMAND | {""}
    return {name: value for name, value in settings.items() if name not in dropped}


def references_to_file() -> dict[str, str]:
    """The client settings of the file as changes of a pipeline: references to the values, which may be secrets."""
    known = {**settings_of(ProducerConfig), **settings_of(ConsumerConfig)}
    return {
        f"kafka.{name}": f"${{file:{_from_file['']}:{name}}}"
        for name in _from_file
        if security_name(name) in known and name not in OF_THE_COMMAND
    }


def add_options(command: Any) -> None:
    """Adds the option to every command below that has --bootstrap."""
    for each in getattr(command, "commands", {}).values():
        add_options(each)
    if any(parameter.name == "bootstrap" for parameter in command.params):
        taken = {name for parameter in command.params for name in parameter.opts}
        command.params.append(_option([name for name in NAMES if name not in taken]))


def _option(names: list[str]) -> Any:
    """The option as Typer creates it: the only parameter of a command that is never run."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def carrier(
        command_config: str = typer.Option(
            "",
            *names,
            metavar="FILE",
            envvar=ENVIRONMENT,
            show_default=False,
            help="Client settings in a properties file: security, brokers and more.",
            is_eager=True,
            expose_value=False,
            callback=_use,
        ),
    ) -> None:
        """Never called."""

    return next(each for each in typer.main.get_command(app).params if each.name == "command_config")


def _use(context: typer.Context, path: str) -> None:
    _from_file.clear()
    if not path:
        return
    _from_file.update(read_client_properties(Path(path)))
    _from_file[""] = str(Path(path).absolute())
    if "bootstrap.servers" in _from_file:
        # Before the default, after --bootstrap and OTTLA_BOOTSTRAP.
        context.default_map = {**(context.default_map or {}), "bootstrap": _from_file["bootstrap.servers"]}


def read_client_properties(path: Path) -> dict[str, str]:
    """Reads the file. Errors name the line, never its text: it may be part of a key."""
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # what Java expects
    try:
        found = read_properties(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", error.hint) from None
    for name in found:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{path} has a line that does not begin with the name of a setting",
                "Write one name=value per line; a line that continues ends with a backslash.",
            )
    _warn_if_exposed(path, found)
    return found


def _warn_if_exposed(path: Path, settings: dict[str, str]) -> None:
    if os.name == "posix" and any(looks_secret(name) for name in settings):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & stat.S_IROTH:
            warning = f"{path} contains secrets, and every user of this machine can read it (mode {mode:04o})"
            line = Text.assemble(("ottla: ", "bold yellow"), warning, (f" (run: chmod 600 {path})", "dim"))
            error_console().print(line)
