"""Writes the pages that are generated from the code. `tests/test_docs.py` checks that they are current.

.venv/bin/python tools/make_docs.py
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from ottla.broker.dispatch import SERVED, advertised
from ottla.broker.permissions import PERMISSIONS
from ottla.broker.settings.config import BrokerConfig
from ottla.client.core.security_settings import SecurityConfig
from ottla.client.core.settings import ClientConfig, ConsumerConfig, ProducerConfig
from ottla.config import Setting, settings_of
from ottla.log.config import TopicConfig
from ottla.protocol.api import API, ApiKey

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ottla"
INDEX = "## Module index\n"
DIFFERENCES = "## Differences from Apache Kafka\n"
ONE_FILE_PER_API = ("broker/handlers", "protocol/messages", "protocol/messages/unserved")
"""Folders whose file names are self-explanatory: the index counts their modules instead of listing them."""


def row(setting: Setting, *, of_a_client: bool = False) -> str:
    default = setting.format(setting.default)
    shown = f"`{default}`" if default else "(none)"
    limits = []
    if setting.choices:
        limits.append(", ".join(setting.choices))
    if setting.at_least is not None:
        limits.append(f"at least {setting.at_least}")
    if setting.at_most is not None:
        limits.append(f"at most {setting.at_most}")
    note = f" ({'; '.join(limits)})" if limits else ""
    changeable = "" if setting.read_only or of_a_client else " *Can be changed at run time.*"
    return f"| `{setting.name}` | {shown} | {setting.kind} | {setting.doc}{note}{changeable} |"


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "Settings have Kafka's names, meanings and defaults; names that start with `ottla.` are specific to Ottla.",
        "This page lists the settings of [topics](#topics), of the [broker](#broker), of [all clients](#clients), of",
        "the [producer](#producer) and of the [consumer](#consumer). Pass broker settings to `ottla serve` with",
        "`--set name=value`, or in a properties file with `--config FILE`. Pass topic settings to",
        "`ottla topic create --config name=value` or `ottla topic alter`; their default is the broker setting in the",
        "last column. Kafka settings without a meaning in Ottla, such as thread counts, are accepted and logged.",
        "Topic settings of tiered storage are stored and described, but have no effect.",
        "Unknown names are rejected, and the error suggests the most similar name.",
        "",
        "This page is generated from the code by `tools/make_docs.py`.",
        "",
        "## Topics",
        "",
        "| setting | default | type | what it does | broker setting |",
        "|---|---|---|---|---|",
    ]
    topic_settings = sorted(settings_of(TopicConfig).values(), key=lambda s: s.name)
    lines += [
        f"{row(setting)} `{setting.server_name}` |" if setting.server_name else f"{row(setting)} |"
        for setting in topic_settings
    ]
    lines += ["", "## Broker", "", "| setting | default | type | what it does |", "|---|---|---|---|"]
    lines += [row(setting) for setting in sorted(settings_of(BrokerConfig).values(), key=lambda s: s.name)]
    shared = settings_of(ClientConfig)
    lines += [
        "",
        "## Clients",
        "",
        "For `Producer`, `Consumer`, `Admin` and their async versions. Pass them as a dict with these names, or as",
        "keyword arguments with `_` instead of dots: `Producer({'linger.ms': 20})` and `Producer(linger_ms=20)` are",
        "equivalent. `ottla produce` and `ottla consume` accept them with `--set`. Three defaults differ from Kafka's:",
        "`batch.size`, `client.id` and `bootstrap.servers`. Names of other clients are accepted too, see",
        "[coming from another client](other-clients.md).",
        "",
        *client_table(setting for name, setting in shared.items() if name not in settings_of(SecurityConfig)),
        "",
        "### Security of clients",
        "",
        "For all clients ([more](client-security.md)). Values of type password are never shown.",
        "",
        *client_table(settings_of(SecurityConfig).values()),
    ]
    for title, config in (("Producer", ProducerConfig), ("Consumer", ConsumerConfig)):
        own = [setting for name, setting in settings_of(config).items() if name not in shared]
        lines += ["", f"## {title}", "", *client_table(own)]
    return "\n".join(lines) + "\n"


def client_table(settings: Iterable[Setting]) -> list[str]:
    rows = [row(setting, of_a_client=True) for setting in sorted(settings, key=lambda s: s.name)]
    return ["| setting | default | type | what it does |", "|---|---|---|---|", *rows]


def protocol_page() -> str:
    """docs/protocol.md: a generated table, then differences from Apache Kafka, written by hand."""
    written_by_hand = (ROOT / "docs" / "protocol.md").read_text().partition(DIFFERENCES)[2]
    lines = [
        "# Supported protocol versions",
        "",
        "The APIs and versions that the broker reports in its ApiVersions response. The message tables in",
        "`src/ottla/protocol/messages/` define more than the broker serves.",
        "",
        "This table is generated from the code by `tools/make_docs.py`; the",
        "[differences from Apache Kafka](#differences-from-apache-kafka) below are written by hand.",
        "",
        "The permissions are those that a client needs if the broker has an authorizer: an operation and its resource.",
        "A client without the permission gets an error for the resource, such as TOPIC_AUTHORIZATION_FAILED.",
        "",
        "| key | API | versions served | permissions |",
        "|---|---|---|---|",
    ]
    ranges = {key: (first, last) for key, first, last in advertised()}
    for key in sorted(SERVED):
        served = SERVED[key].versions
        note = f" (advertised from {ranges[key][0]})" if ranges[key][0] != served[0] else ""
        lines.append(f"| {int(key)} | {API[key].name} | {served[0]}-{served[-1]}{note} | {permissions_of(key)} |")
    return "\n".join([*lines, "", DIFFERENCES]) + written_by_hand


def permissions_of(key: int) -> str:
    described = [
        f"{each.operation.name} {each.type.name.replace('_', ' ').lower()}" + (f" ({each.when})" if each.when else "")
        for each in PERMISSIONS[ApiKey(key)]
    ]
    return "; ".join(described) or "none"


def architecture_page() -> str:
    """ARCHITECTURE.md, with its last section generated from the first sentences of the modules' docstrings."""
    written_by_hand = (ROOT / "ARCHITECTURE.md").read_text().partition(INDEX)[0]
    lines = [INDEX, "Generated by `tools/make_docs.py` from the first paragraph of each module's docstring.", ""]
    for folder in sorted({path.parent for path in SOURCE.rglob("*.py")}):
        lines += [*index_of(folder), ""]
    return written_by_hand + "\n".join(lines[:-1]) + "\n"


def index_of(folder: Path) -> Iterator[str]:
    name = folder.relative_to(SOURCE).as_posix()
    modules = sorted(path for path in folder.glob("*.py") if not path.name.startswith("__"))
    yield f"### `{name}/`" if name != "." else "### `src/ottla/`"
    yield ""
    yield summary(folder / "__init__.py")
    if name in ONE_FILE_PER_API:
        yield f"\n{len(modules)} modules, named after the API or record."
    elif modules:
        yield ""
        yield from (f"- `{path.name}`: {summary(path)}" for path in modules)


def summary(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())


PAGES = {"docs/settings.md": settings_page, "docs/protocol.md": protocol_page, "ARCHITECTURE.md": architecture_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (ROOT / name).write_text(make())
        print(name)
