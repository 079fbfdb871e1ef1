"""Assembles the commands, and turns every error into one line on standard error and an exit status.

Exit statuses: 0 success, 1 the command failed, 2 the command line is wrong, 130 interrupted by Ctrl-C.
"""

import errno
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

import ottla
from ottla.cli.client_config import add_options
from ottla.cli.output import INTERRUPTED, drop_output, prepare_streams, print_error
from ottla.cli.session import explain, status_of
from ottla.errors import KafkaError, OttlaError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Raised when the disk of the output file is full, as in `ottla consume orders > file`."""

COMMANDS = {
    "demo": "ottla.cli.demo.command",
    "pipeline": "ottla.cli.pipeline.commands",
    "topic": "ottla.cli.topic",
    "produce": "ottla.cli.produce",
    "consume": "ottla.cli.consume.command",
    "group": "ottla.cli.group.commands",
    "txn": "ottla.cli.txn",
    "cluster": "ottla.cli.cluster.commands",
    "copy": "ottla.cli.copy.command",
    "config": "ottla.cli.config",
    "user": "ottla.cli.user",
    "quota": "ottla.cli.quota",
    "acl": "ottla.cli.acl.commands",
    "log": "ottla.cli.log",
    "verify": "ottla.cli.verify.command",
}
"""Commands in the order of the help text, each with the module that holds it.

The module has a function named after the command, or an `app` with subcommands. It is imported only when it is needed.
"""


def build(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Builds the tool with these commands only; the modules of the others are not imported."""
    app = typer.Typer(
        name="ottla",
        help="Kafka-compatible streaming in Python: a broker, clients, exactly-once pipelines on Spark, and tools.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(invoke_without_command=True)(root)
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(add_help_option=False, context_settings=passed_on)(serve)
    for name in names:
        module = importlib.import_module(COMMANDS[name])
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        typer.echo(f"ottla {ottla.__version__}")
        raise typer.Exit()


def serve(context: typer.Context) -> None:
    """Run a broker until Ctrl-C."""
    from ottla.cli.serve.command import serve as run_broker

    raise typer.Exit(run_broker(context.args))


def hide_types(command: Any) -> None:
    """Removes Python types, such as <list[str]> and <bool>, from the help of arguments and of --help."""
    for each in getattr(command, "commands", {}).values():
        hide_types(each)
    parameters_of = command.get_params  # includes --help, which is created on first use

    def get_params(context: Any) -> Any:
        found = parameters_of(context)
        for each in found:
            if each.param_type_name == "argument":
                each.display_type_rich = lambda ctx: None
            elif each.name == "help":
                each.metavar = ""
        return found

    command.get_params = get_params


def run(words: Sequence[str]) -> int:
    """Runs one command line and returns its exit status. User errors never end in a traceback."""
    prepare_streams()
    # Not `app(words)`: Typer would report a broken pipe as a failure and print errors in its own format.
    is_known = bool(words) and words[0] in COMMANDS
    command = typer.main.get_command(build(words[:1] if is_known else COMMANDS))
    add_options(command)
    hide_types(command)
    try:
        with command.make_context("ottla", list(words)) as context:
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as exit:
        return exit.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()  # the reader has exited, as in `ottla consume orders | head`
        return 0
    except KafkaError as error:
        print_error(*explain(error))
        return 1
    except OttlaError as error:
        print_error(error.message, error.hint)
        return status_of(error)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.filename is not None:
            print_error(f"{os.fsdecode(error.filename)}: {reason}")
            return 2
        if error.errno not in DISK_FULL:
            raise
        drop_output()
        print_error(f"cannot write the output: {reason}")
        return 1
    except Exception as error:
        status = _usage_status(error)
        if status is None:
            raise
        return status


def _usage_status(error: Any) -> int | None:
    """Prints an error of the option parser in our format and returns its exit status; None for other errors."""
    if type(error).__name__ == "Abort":
        return INTERRUPTED
    if not hasattr(error, "format_message"):
        return None
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "ottla"
    message = error.format_message().strip().rstrip(".").replace("Value error, ", "")
    if message:
        print_error(message[0].lower() + message[1:], f"see: {command} --help")
    return int(getattr(error, "exit_code", 2))
