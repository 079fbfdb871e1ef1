"""`ottla serve`: runs one broker until it is told to stop."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.errors import KafkaError, OttlaError

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.settings.config import BrokerConfig

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_DATA = "ottla-data"
LOG_LEVELS = ("debug", "info", "warning", "error")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""glibc's numbers for what `mallopt` sets."""
_FREE_BYTES_KEPT = 64 << 20
_MAPPED_BLOCK_BYTES_MIN = 32 << 20
"""The most that glibc takes; blocks of this size are never kept."""

HELP = f"""\
Usage: ottla serve [OPTION ...]

Runs a broker that every Kafka client can talk to. Prints "ottla ready: HOST:PORT" once it answers;
Ctrl-C or SIGTERM stops it cleanly.

Options:
  --listen HOST:PORT    where to listen; port 0 picks a free one, :PORT means every interface
                        (default: {DEFAULT_LISTEN})
  --data DIR            where records and metadata are kept (default: ./{DEFAULT_DATA})
  --config FILE         a file of settings, one name=value to a line, as for Apache Kafka
  --set NAME=VALUE      one setting, stronger than the file; may be given often
  --metrics HOST:PORT   serve counters for Prometheus there (needs: pip install 'ottla[metrics]')
  --log-level LEVEL     {", ".join(LOG_LEVELS)} (default: info); the log goes to standard error
  --stop-with-stdin     also stop when standard input is closed, for programs that start a broker
  --help                show this

Settings have Kafka's names. Those given as options are stronger than --set, and --set than the file.

Examples:
  ottla serve
  ottla serve --listen 127.0.0.1:0 --data /tmp/orders
  ottla serve --set num.partitions=6 --set log.retention.hours=24
  ottla serve --config server.properties --log-level warning
"""


class Options(NamedTuple):
    """What the command line asks for."""

    values: dict[str, str]
    """Settings by name, still as text."""
    log_level: str = "info"
    stop_with_stdin: bool = False
    help: bool = False


def serve(arguments: Sequence[str]) -> int:
    """The command: 0 after a clean stop, 2 for a mistake in what was asked, told in one line."""
    try:
        options = parse_options(arguments)
        if options.help:
            print(HELP, end="")
            return 0
        return _run(options)
    except KeyboardInterrupt:  # before the broker was there to be stopped
        return 130
    except OttlaError as error:
        hint = f" ({error.hint})" if error.hint else ""
        print(f"ottla: {error.message}{hint}", file=sys.stderr)
        return 2


def parse_options(arguments: Sequence[str]) -> Options:
    """Reads the command line. `--name value` and `--name=value` are the same."""
    given: dict[str, str] = {}
    settings: dict[str, str] = {}
    flags = set()
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word in ("--help", "-h"):
            return Options({}, help=True)
        name, has_value, value = word.partition("=")
        if name == "--stop-with-stdin" and not has_value:
            flags.add(name)
            continue
        if name not in ("--listen", "--data", "--config", "--set", "--metrics", "--log-level"):
            raise OttlaError(f"unknown option {word}", "ottla serve --help lists the options")
        if not has_value:
            if not words:
                raise OttlaError(f"{name} needs a value", "ottla serve --help shows what each option takes")
            value = words.pop(0)
        if name == "--set":
            setting, equals, text = value.partition("=")
            if not equals or not setting.strip():
                raise OttlaError(f"--set {value} has no '='", "write --set NAME=VALUE")
            settings[setting.strip()] = text.strip()
        elif name in given:
            raise OttlaError(f"{name} is given twice", "give it once")
        else:
            given[name] = value
    values = _read_config(given["--config"]) if "--config" in given else {}
    values |= settings
    if "--listen" in given:
        values["listeners"] = _listener(given["--listen"])
    if "--data" in given:
        values["log.dirs"] = given["--data"]
        values.pop("log.dir", None)
    if "--metrics" in given:
        values["ottla.metrics.listen"] = given["--metrics"]
    values.setdefault("listeners", _listener(DEFAULT_LISTEN))
    if "log.dir" not in values:
        values.setdefault("log.dirs", DEFAULT_DATA)
    log_level = given.get("--log-level", "info").lower()
    if log_level not in LOG_LEVELS:
        raise OttlaError(f"unknown log level {log_level}", f"one of {', '.join(LOG_LEVELS)}")
    return Options(values, log_level, "--stop-with-stdin" in flags)


def _listener(address: str) -> str:
    """Kafka's form of HOST:PORT."""
    if "://" in address:
        return address
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise OttlaError(f"cannot listen on {address!r}", "write --listen HOST:PORT, for example 127.0.0.1:9092")
    return f"PLAINTEXT://{host}:{port}"


def _read_config(path: str) -> dict[str, str]:
    from ottla.config import read_properties

    try:
        with open(path, encoding="utf-8") as file:
            return read_properties(file.read())
    except OSError as error:
        raise OttlaError(f"cannot read {path}: {error.strerror}", "give a file of name=value lines") from None
    except UnicodeDecodeError:
        raise OttlaError(f"cannot read {path}: it is not text", "give a file of name=value lines") from None
    except OttlaError as error:
        raise OttlaError(f"{path}: {error.message}", error.hint) from None


def _run(options: Options) -> int:
    import asyncio
    import logging

    from ottla.broker.settings.config import load_config

    logging.basicConfig(
        stream=sys.stderr,
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    config = load_config(options.values)
    _fill_standard_files()
    _raise_file_limit()
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:  # slower, and otherwise the same
        pass
    else:
        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(config, options))
    return 0


async def _serve(config: "BrokerConfig", options: Options) -> None:
    import asyncio

    from ottla.broker.broker import Broker

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _on_signal, stop)
    if options.stop_with_stdin:
        _watch_stdin(loop, stop)
    broker = Broker(config)
    try:
        await broker.start()
    except (OSError, KafkaError) as error:
        hint = "look at the log above, and at the directory and its disk"
        raise OttlaError(f"the broker cannot start on {config.log_dirs[0]}: {error}", hint) from None
    try:
        _settle_memory()
        _say_ready(broker.address)
        _keep_large_blocks()  # nobody waits for it
        await stop.wait()
    finally:
        await broker.stop()


def _say_ready(address: str) -> None:
    try:
        print(f"ottla ready: {address}", flush=True)
    except OSError:  # nobody listens: the broker serves all the same
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _on_signal(stop: "asyncio.Event") -> None:
    if stop.is_set():
        # Asked twice: whoever asks does not want to wait. What was acknowledged is safe; the next start recovers.
        os._exit(1)
    stop.set()


def _watch_stdin(loop: "asyncio.AbstractEventLoop", stop: "asyncio.Event") -> None:
    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()

    try:
        loop.add_reader(0, readable)
    except OSError:
        raise OttlaError("--stop-with-stdin: standard input is no pipe", "start the broker with a pipe there") from None


def _fill_standard_files() -> None:
    """A process started without standard files would get sockets and logs under their numbers."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one


def _raise_file_limit() -> None:
    """Partitions and connections are open files: take as many as the system grants."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems refuse "unlimited" as a soft limit
            pass


def _settle_memory() -> None:
    """What lives as long as the broker is not looked at again by each garbage collection."""
    import gc

    gc.collect()
    gc.freeze()


def _keep_large_blocks() -> None:
    """A fetch takes a large block of memory for each partition and lets it go once the answer is out.

    Left alone, the C library gives the block back to the system, which clears it again for the next fetch, page by
    page: two thirds of what a large fetch costs. So some free memory is kept, where the library can be told to.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_BLOCK_BYTES_MIN)
    mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES_KEPT)
