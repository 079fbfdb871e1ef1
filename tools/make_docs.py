"""Writes the pages of docs/ that are printed from the code. `tests/test_docs.py` checks that they are current.

.venv/bin/python tools/make_docs.py
"""

from pathlib import Path

from ottla.broker.config import BrokerConfig
from ottla.broker.dispatch import SERVED, advertised
from ottla.config import Setting, settings_of
from ottla.log.config import TopicConfig
from ottla.protocol.api import API

DOCS = Path(__file__).parent.parent / "docs"


def row(setting: Setting) -> str:
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
    changeable = "" if setting.read_only else " *Can be changed at run time.*"
    return f"| `{setting.name}` | {shown} | {setting.kind} | {setting.doc}{note}{changeable} |"


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "Every setting has Kafka's name, meaning and default; those that begin with `ottla.` are our own. Give them to",
        "`ottla serve` with `--set name=value` or in a `.properties` file with `--config FILE`. Topic settings go to",
        "`ottla topic create --config name=value` or `ottla topic alter`; the broker setting in the last column gives",
        "their default. Names that Kafka has but that mean nothing here (thread counts, for one) are accepted with a",
        "notice; unknown names are refused with the nearest known one.",
        "",
        "This page is printed from the code by `tools/make_docs.py`.",
        "",
        "## Topics",
        "",
        "| setting | default | type | what it does | broker setting |",
        "|---|---|---|---|---|",
    ]
    topic_settings = sorted(settings_of(TopicConfig).values(), key=lambda s: s.name)
    lines += [f"{row(setting)} `{setting.server_name}` |" for setting in topic_settings]
    lines += ["", "## Broker", "", "| setting | default | type | what it does |", "|---|---|---|---|"]
    lines += [row(setting) for setting in sorted(settings_of(BrokerConfig).values(), key=lambda s: s.name)]
    return "\n".join(lines) + "\n"


def protocol_page() -> str:
    lines = [
        "# The protocol we serve",
        "",
        "Every Kafka client negotiates versions with ApiVersions; these are what the broker answers. The message",
        "tables in `src/ottla/protocol/messages/` know more than the broker serves.",
        "",
        "This page is printed from the code by `tools/make_docs.py`.",
        "",
        "| key | API | versions served |",
        "|---|---|---|",
    ]
    ranges = {key: (first, last) for key, first, last in advertised()}
    for key in sorted(SERVED):
        served = SERVED[key].versions
        note = f" (advertised from {ranges[key][0]})" if ranges[key][0] != served[0] else ""
        lines.append(f"| {int(key)} | {API[key].name} | {served[0]}-{served[-1]}{note} |")
    return "\n".join(lines) + "\n"


PAGES = {"settings.md": settings_page, "protocol.md": protocol_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())
        print(f"docs/{name}")
