"""Key stores that a listener cannot use: Ottla and Apache Kafka reject the same changes with the same error code."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ottla.errors import ErrorCode
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tests.support.certificates import Authority
from tests.support.processes.secure_oracle import SecureKafka
from tests.support.processes.secure_ottla import secure_ottla
from tests.support.wire.raw import Side

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

BROKER = 4
SECRET = "not-to-be-shown"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, secure_kafka: SecureKafka) -> Iterator[list[Side]]:
    with (
        secure_ottla(tmp_path_factory.mktemp("ottla")) as ottla,
        closing(Side("ottla", ottla.shared.addresses["PLAINTEXT"], "")) as ours,
        closing(Side("kafka", secure_kafka.addresses["PLAINTEXT"], "")) as theirs,
    ):
        yield [ours, theirs]


def stores(directory: Path) -> dict[str, dict[str, str]]:
    new = Authority().issue("CN=broker")
    (directory / "garbage.pem").write_text("garbage")
    (directory / "key.pem").write_text(new.key_pem())
    encrypted, pkcs12 = new.write(directory / "e.pem", "right"), new.write_pkcs12(directory / "b.p12", "right")
    return {
        "missing": {"keystore.location": str(directory / "none.pem")},
        "garbage": {"keystore.location": str(directory / "garbage.pem")},
        "no certificate": {"keystore.location": str(directory / "key.pem")},
        "key with a wrong password": {"keystore.location": encrypted, "key.password": SECRET},
        "key without its password": {"keystore.location": encrypted},
        "PKCS#12 with a wrong password": {
            "keystore.location": pkcs12,
            "keystore.type": "PKCS12",
            "keystore.password": SECRET,
        },
        "missing trust store": {"truststore.location": str(directory / "none.pem")},
        "garbage as a trust store": {"truststore.location": str(directory / "garbage.pem")},
    }


def change(side: Side, settings: dict[str, str], *, validate_only: bool) -> tuple[ErrorCode, str]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=BROKER,
                resource_name=str(side.node_id),
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(name=f"listener.name.ssl.ssl.{name}", value=value)
                    for name, value in settings.items()
                ],
            )
        ],
        validate_only=validate_only,
    )
    (answer,) = side.connection.ask(request, 1).responses
    return ErrorCode(answer.error_code), answer.error_message or ""


@pytest.mark.parametrize("validate_only", [True, False])
def test_both_brokers_reject_the_same_key_stores_and_name_the_file(
    both: list[Side], tmp_path: Path, validate_only: bool
) -> None:
    for name, settings in stores(tmp_path).items():
        for side in both:
            code, message = change(side, settings, validate_only=validate_only)
            assert code == ErrorCode.INVALID_REQUEST, (name, side.name)
            assert next(value for key, value in settings.items() if key.endswith("location")) in message
            assert SECRET not in message
