"""Translation of librdkafka properties for Kafka's Java client."""

from __future__ import annotations

from pathlib import Path

import pytest

from txmsg.errors import MisuseError
from txmsg.spark.kafka.properties import java_properties


def test_tls_and_a_password_are_translated(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"-----{name}-----")
    found = java_properties(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "reader",
            "sasl.password": 'a "quoted\\',
            "ssl.ca.location": str(tmp_path / "ca"),
            "ssl.certificate.location": str(tmp_path / "certificate"),
            "ssl.key.location": str(tmp_path / "key"),
            "ssl.key.password": "secret",
            "ssl.endpoint.identification.algorithm": "none",
            "queued.max.messages.kbytes": "1024",
        }
    )
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="reader" password="a \\"quoted\\\\";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----ca-----",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----certificate-----",
        "ssl.keystore.key": "-----key-----",
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "",
    }


def test_without_properties_no_options_are_set() -> None:
    assert java_properties({}) == {}


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"sasl.mechanisms": "OAUTHBEARER"}, "sasl.mechanisms='OAUTHBEARER', which txmsg cannot translate"),
        ({"sasl.oauthbearer.config": "x"}, "set sasl.oauthbearer.config, which .* options kafka.NAME"),
        ({"ssl.keystore.location": "/k.p12"}, "set ssl.keystore.location"),
        ({"enable.ssl.certificate.verification": "false"}, "Java's client cannot turn off"),
        ({"ssl.ca.location": "/nowhere/ca.pem"}, "ssl.ca.location='/nowhere/ca.pem' .* cannot be read"),
        ({"ssl.key.pem": "-----"}, "one of ssl.certificate and ssl.key"),
    ],
)
def test_a_connection_that_java_cannot_make_is_refused(properties: dict[str, str], why: str) -> None:
    with pytest.raises(MisuseError, match=why):
        java_properties(properties)
