"""The command line of `ottla serve`: its help text, and its options as settings. Imports little, for a quick start."""

from collections.abc import Sequence
from typing import NamedTuple

from ottla.checks import endpoint_from_text, number_from_text
from ottla.config import BROKER_ALIASES
from ottla.errors import OttlaError
from ottla.types import BROKERS_ON_HOST_MAX

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_DATA = "ottla-data"
LOG_LEVELS = ("debug", "info", "warning", "error")
SEE_HELP = "see: ottla serve --help"

HELP = f"""\
Usage: ottla serve [OPTION ...]

Run a Kafka-compatible broker, or several. Prints "ottla ready: HOST:PORT" when it accepts connections.
Ctrl-C or SIGTERM stops it cleanly; a second one stops it immediately.

Options:
  --listen HOST:PORT    address to listen on; port 0 picks a free port, :PORT listens on all interfaces
                        (default: {DEFAULT_LISTEN})
  --insecure            let other machines reach listeners without TLS and SASL: everyone who can reach them can
                        read, write and delete everything
  --data DIR            data directory for records and metadata (default: ./{DEFAULT_DATA})
  --brokers N           run a cluster of N broker processes on the ports from --listen upwards, each with its own
                        directory in --data; a broker that crashes is restarted
  --node-id N           this broker's id in a cluster (default: 0)
  --metadata LOCATION   the cluster's metadata: a file, for brokers on one host, or etcd://HOST:PORT,…/PREFIX, for
                        several hosts; brokers with the same metadata form a cluster
                        (default: inside the data directory)
  --config FILE         properties file with one name=value per line, like Kafka's server.properties
  --set NAME=VALUE      set a broker setting; overrides the file; repeatable
  --add-scram USER      create a user before the first start, as kafka-storage does; repeatable. USER is
                        SCRAM-SHA-512=[name=admin,password=PASSWORD], or @FILE with one such line for each user; a
                        user that exists keeps its password. `ottla user add NAME --data DIR` prompts for one
  --metrics HOST:PORT   serve /healthz, /readyz, /safe-to-stop and Prometheus' /metrics on this address
                        (/metrics needs: pip install 'ottla[metrics]')
  --log-level LEVEL     {", ".join(LOG_LEVELS)} (default: info); logs go to standard error
  --stop-with-stdin     also stop when standard input is closed, for programs that start a broker
  --help, -h            show this message and exit

Settings have Kafka's names. Options override --set, and --set overrides the file.

Examples:
  ottla serve
  ottla serve --listen 127.0.0.1:0 --data /tmp/orders
  ottla serve --set num.partitions=6 --set log.retention.hours=24
  ottla serve --config server.properties --log-level warning

A cluster of three brokers, with one command or with three:
  ottla serve --brokers 3

  ottla serve --node-id 0 --metadata /tmp/c/metadata --listen 127.0.0.1:9092 --data /tmp/c/0
  ottla serve --node-id 1 --metadata /tmp/c/metadata --listen 127.0.0.1:9093 --data /tmp/c/1
  ottla serve --node-id 2 --metadata /tmp/c/metadata --listen 127.0.0.1:9094 --data /tmp/c/2

On several hosts, with etcd (docs/clusters.md):
  ottla serve --node-id 1 --metadata etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/ottla --listen 10.0.0.1:9092
"""

_SETTINGS = {
    "--listen": "listeners",
    "--data": "log.dirs",
    "--node-id": "node.id",
    "--metadata": "ottla.metadata",
    "--metrics": "ottla.metrics.listen",
}
"""Options that set a setting."""
_ALIASES = {setting: alias for alias, setting in BROKER_ALIASES.items()}
"""An option also replaces the other name of its setting."""
_FLAGS = ("--stop-with-stdin", "--insecure")
_OTHERS = ("--config", "--set", "--log-level", "--brokers", "--add-scram")


class Options(NamedTuple):
    """The parsed command line."""

    values: dict[str, str]
    """Settings by name, as unparsed text."""
    log_level: str = "info"
    stop_with_stdin: bool = False
    help: bool = False
    brokers: int | None = None
    """How many brokers to run and supervise; None for one broker without a supervisor."""
    add_scram: Sequence[str] = ()
    """Users to create before the start, as unparsed text."""


def parse_options(arguments: Sequence[str]) -> Options:
    """Parses the command line. `--name value` and `--name=value` are equivalent."""
    options: dict[str, str] = {}
    settings: dict[str, str] = {}
    add_scram: list[str] = []
    flags = set()
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word in ("--help", "-h"):
            return Options({}, help=True)
        name, has_value, value = word.partition("=")
        if name in _FLAGS and not has_value:
            flags.add(name)
            continue
        if name not in _SETTINGS and name not in _OTHERS:
            raise OttlaError(f"unknown option {word}", SEE_HELP)
        if not has_value:
            if not words:
                raise OttlaError(f"{name} needs a value", SEE_HELP)
            value = words.pop(0)
        if name == "--set":
            setting, equals, text = value.partition("=")
            if not equals or not setting.strip():
                raise OttlaError(f"--set {value} has no '='", "write --set NAME=VALUE")
            settings[setting.strip()] = text.strip()
        elif name == "--add-scram":
            add_scram.append(value)
        elif name in options:
            raise OttlaError(f"option {name} is repeated", "pass it once")
        else:
            options[name] = value
    values = read_config(options["--config"]) if "--config" in options else {}
    values |= settings
    for name, setting in _SETTINGS.items():
        if name in options:
            values.pop(_ALIASES.get(setting, ""), None)
            values[setting] = listener(options[name]) if name == "--listen" else options[name]
    if "--insecure" in flags:
        values["ottla.insecure"] = "listeners,metrics"
    values.setdefault("listeners", listener(DEFAULT_LISTEN))
    if "log.dir" not in values:
        values.setdefault("log.dirs", DEFAULT_DATA)
    log_level = options.get("--log-level", "info").lower()
    if log_level not in LOG_LEVELS:
        raise OttlaError(f"unknown log level {log_level}", f"use one of {', '.join(LOG_LEVELS)}")
    brokers = _number_of_brokers(options["--brokers"], values) if "--brokers" in options else None
    return Options(values, log_level, "--stop-with-stdin" in flags, brokers=brokers, add_scram=add_scram)


def listener(address: str) -> str:
    """Converts HOST:PORT to Kafka's listener format."""
    if "://" in address:
        return address
    if endpoint_from_text(address, needs_brackets=True) is None:
        raise OttlaError(
            f"cannot listen on {address!r}",
            "write --listen HOST:PORT with a port from 0 to 65535, for example 127.0.0.1:9092; IPv6 as [::1]:9092",
        )
    return f"PLAINTEXT://{address}"


def _number_of_brokers(text: str, values: dict[str, str]) -> int:
    number = number_from_text(text)
    if number is None or not 1 <= number <= BROKERS_ON_HOST_MAX:
        raise OttlaError(
            f"cannot run {text!r} brokers", f"write --brokers N with a number from 1 to {BROKERS_ON_HOST_MAX}"
        )
    if "node.id" in values or "broker.id" in values:
        raise OttlaError(
            "--brokers cannot be combined with a node id", "--brokers assigns the ids 0, 1, 2 …; remove the node id"
        )
    return int(number)


def read_config(path: str) -> dict[str, str]:
    """The settings in a properties file."""
    from ottla.config import read_properties

    try:
        with open(path, encoding="utf-8") as file:
            return read_properties(file.read())
    except OSError as error:
        raise OttlaError(f"cannot read {path}: {error.strerror}", "pass a file with one name=value per line") from None
    except UnicodeDecodeError:
        raise OttlaError(f"cannot read {path}: it is not text", "pass a file with one name=value per line") from None
    except OttlaError as error:
        raise OttlaError(f"{path}: {error.message}", error.hint) from None
