"""The files in deploy/ fit together, and name only options, settings and pages that exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ottla.broker.broker import Broker
from ottla.broker.settings.config import load_config
from ottla.broker.settings.exposure import check_exposure
from ottla.cli.app import build
from ottla.cli.serve.options import Options, parse_options
from ottla.errors import ConfigError

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "systemd" / "ottla.service").read_text()
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
DOCUMENTS: list[Any] = [
    document
    for name in ("secret.yaml", "ottla.yaml")
    for document in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
]
HEALTH_PORT = 9308


def the(kind: str, name: str = "ottla") -> Any:
    (found,) = [each for each in DOCUMENTS if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


POD = the("StatefulSet")["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def options_of(words: list[str], tmp_path: Path, properties: str = "") -> Options:
    """The options of `ottla serve WORDS`, with a file of these properties in the place of its --config."""
    config = tmp_path / "server.properties"
    config.write_text(properties)
    assert words[0] == "serve"
    return parse_options([str(config) if "server.properties" in word else word for word in words[1:]])


def check_command(words: list[str]) -> None:
    """Parses `ottla WORDS` with the real command line, without running it."""
    command: Any = typer.main.get_command(build([words[0]]))
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    command.make_context("ottla", list(words))


def unit_settings(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


# systemd


def test_the_unit_starts_a_broker_with_options_and_settings_that_exist(tmp_path: Path) -> None:
    words = shlex.split(unit_settings("ExecStart")[0])
    extra = re.findall(r"^OTTLA_OPTIONS=(.*)$", (DEPLOY / "systemd" / "ottla.env").read_text(), re.MULTILINE)[0]
    properties = (DEPLOY / "systemd" / "server.properties").read_text()
    arguments = [*words[1 : words.index("$OTTLA_OPTIONS")], *shlex.split(extra)]
    config = load_config(options_of(arguments, tmp_path, properties).values)
    assert (config.notices, check_exposure(config)) == ((), [])
    assert config.log_dirs == ("/var/lib/" + unit_settings("StateDirectory")[0],)


def test_the_unit_asks_the_broker_before_it_stops_it() -> None:
    (stop,) = unit_settings("ExecStop")
    assert stop.startswith("-"), "a failed wait must not keep the broker running"
    words = shlex.split(stop[1:])[1:]
    check_command(words)
    properties = (DEPLOY / "systemd" / "server.properties").read_text()
    assert f"ottla.metrics.listen={words[words.index('--endpoint') + 1].removeprefix('http://')}\n" in properties
    patience = float(words[words.index("--timeout") + 1])
    assert float(unit_settings("TimeoutStopSec")[0].removesuffix("s")) >= patience + 20


def test_the_unit_is_hardened() -> None:
    assert "User=root" not in UNIT
    assert {"NoNewPrivileges=yes", "ProtectSystem=strict", "Type=notify"} <= set(UNIT.splitlines())


# Kubernetes


def test_pods_start_a_broker_with_options_and_settings_that_exist(tmp_path: Path) -> None:
    properties = the("Secret", "ottla-config")["stringData"]["server.properties"]
    values = options_of([_filled_in(word) for word in CONTAINER["args"]], tmp_path, properties).values
    config = load_config(values)
    assert config.notices == ()
    # The network policy protects the metrics. Nothing else is exposed.
    (danger,) = check_exposure(config)
    assert "can read the metrics" in danger
    assert values["node.id"] == "2"
    assert values["advertised.listeners"].count("ottla-2.ottla.streams.svc.cluster.local") == 2


def _filled_in(word: str) -> str:
    """As Kubernetes replaces $(NAME) in arguments."""
    values = {"NODE_ID": "2", "POD_NAME": "ottla-2", "NAMESPACE": "streams"}
    assert {each["name"] for each in CONTAINER["env"]} == values.keys()
    return re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word)


def test_probes_ask_pages_that_exist_at_the_port_of_the_endpoint(tmp_path: Path) -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports["health"] == HEALTH_PORT
    assert "ottla.metrics.listen=:9308" in the("Secret", "ottla-config")["stringData"]["server.properties"]
    broker = Broker(load_config({"log.dirs": str(tmp_path)}))
    pages = {path.decode() for path in broker.health.pages()}
    probed = {CONTAINER[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")}
    assert probed == {"/healthz", "/readyz"}
    assert probed <= pages
    for service in ("ottla", "ottla-bootstrap"):
        for port in the("Service", service)["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]


def test_the_hook_waits_for_replicas_and_has_the_time_to() -> None:
    words = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    # Kubernetes replaces $(NAME) in arguments, but not in hooks.
    assert not any("$" in word for word in words)
    assert words[0] == "ottla"
    check_command(words[1:])
    assert words[words.index("--endpoint") + 1] == f"http://127.0.0.1:{HEALTH_PORT}"
    assert POD["terminationGracePeriodSeconds"] >= float(words[words.index("--timeout") + 1]) + 30


def test_names_and_labels_of_the_objects_fit_together() -> None:
    labels = the("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert the("StatefulSet")["spec"]["selector"]["matchLabels"] == labels
    assert the("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    open_ports = {port["port"] for rule in the("NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]}
    assert open_ports == {port["name"] for port in CONTAINER["ports"]}
    assert the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert all(the("Service", name)["spec"]["selector"] == labels for name in ("ottla", "ottla-bootstrap"))
    assert the("StatefulSet")["spec"]["serviceName"] == the("Service")["metadata"]["name"]
    assert the("Service")["spec"]["publishNotReadyAddresses"] is True
    claims = {each["metadata"]["name"] for each in the("StatefulSet")["spec"]["volumeClaimTemplates"]}
    volumes = {each["name"] for each in POD["volumes"]}
    assert {each["name"] for each in CONTAINER["volumeMounts"]} == claims | volumes
    secrets = {each["secret"]["secretName"] for each in POD["volumes"] if "secret" in each}
    assert secrets == {each["metadata"]["name"] for each in DOCUMENTS if each["kind"] == "Secret"}


def test_files_named_in_the_settings_are_mounted() -> None:
    properties = the("Secret", "ottla-config")["stringData"]["server.properties"]
    mounted = the("Secret", "ottla-tls")["stringData"]
    for path in re.findall(r"\.location=(.*)$", properties, re.MULTILINE):
        assert Path(path).parent == Path("/etc/ottla/tls")
        assert Path(path).name in mounted


def test_pods_have_no_privileges() -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["automountServiceAccountToken"] is False
    allowed = CONTAINER["securityContext"]
    assert (allowed["allowPrivilegeEscalation"], allowed["readOnlyRootFilesystem"]) == (False, True)
    assert allowed["capabilities"] == {"drop": ["ALL"]}
    assert str(POD["securityContext"]["runAsUser"]) in CONTAINERFILE


# The image


def instructions(name: str) -> list[str]:
    joined = CONTAINERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} +(.*)$", joined, re.MULTILINE)


def test_the_image_runs_without_root_and_has_a_health_check(tmp_path: Path) -> None:
    last = instructions("USER")[-1]
    assert last == "10001:10001"
    (check,) = instructions("HEALTHCHECK")
    assert f"http://127.0.0.1:{HEALTH_PORT}/healthz" in check
    entry, command = (yaml.safe_load(instructions(name)[0]) for name in ("ENTRYPOINT", "CMD"))
    assert entry == ["ottla"]
    values = options_of(command, tmp_path).values
    with pytest.raises(ConfigError, match="neither TLS nor SASL"):
        check_exposure(load_config(values))
    trial = options_of([*command, "--insecure"], tmp_path).values
    assert len(check_exposure(load_config(trial))) == 1
    assert values["ottla.metrics.listen"] == f"127.0.0.1:{HEALTH_PORT}"
    assert values["log.dirs"] in instructions("VOLUME")
    assert instructions("EXPOSE") == ["9092"]


def test_the_image_names_no_registry_and_its_last_stage_no_package_index() -> None:
    assert not re.search(r"https?://(?!127\.0\.0\.1)", CONTAINERFILE)
    assert all("/" not in image.split()[0] for image in instructions("FROM"))
    last_stage = CONTAINERFILE.rpartition("\nFROM ")[2]
    assert "--no-index" in last_stage


def test_the_readme_explains_every_file() -> None:
    text = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.name != "README.md":
            assert f"]({path.relative_to(DEPLOY).as_posix()})" in text, f"{path.name} is not mentioned"
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (DEPLOY / target).exists(), target
