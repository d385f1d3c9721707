"""Translates properties of librdkafka, from the file that all of txmsg uses, to those of Kafka's Java client. Pure.

Properties of the connection are translated or refused. Those of librdkafka's buffers do not concern Java, and are
left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from txmsg.errors import MisuseError, shown

_SAME: Final = frozenset(
    {
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "max.partition.fetch.bytes",
        "sasl.kerberos.service.name",
        "security.protocol",
        "ssl.cipher.suites",
        "ssl.key.password",
    }
)
_TRANSLATED: Final = frozenset(
    {
        "enable.ssl.certificate.verification",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "ssl.endpoint.identification.algorithm",
        *(f"ssl.{part}.{form}" for part in ("ca", "certificate", "key") for form in ("location", "pem")),
    }
)
_OF_CONNECTIONS: Final = ("sasl.", "ssl.", "enable.sasl.", "enable.ssl.")
_UNTRANSLATED: Final = "txmsg cannot translate for Spark's Java client"
_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the same connection for Kafka's Java client; with the certificates' text, so that executors need no files.

    Raises MisuseError for a property of the connection without a counterpart, and for a file that cannot be read.
    """
    for name in sorted(properties.keys() - _SAME - _TRANSLATED):
        if name.startswith(_OF_CONNECTIONS):
            raise _refused(name, _UNTRANSLATED)
    found = {name: value for name, value in properties.items() if name in _SAME}
    return found | _tls(properties) | _sasl(properties)


def _tls(properties: Mapping[str, str]) -> dict[str, str]:
    if properties.get("enable.ssl.certificate.verification", "true").lower() != "true":
        raise _refused("enable.ssl.certificate.verification", "Java's client cannot turn off")
    found: dict[str, str] = {}
    if authority := _pem(properties, "ca"):
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority}
    certificate, key = _pem(properties, "certificate"), _pem(properties, "key")
    if certificate or key:
        if not (certificate and key):
            raise MisuseError("Kafka's properties have one of ssl.certificate and ssl.key: give both, or neither")
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}
    if algorithm := properties.get("ssl.endpoint.identification.algorithm"):
        found["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    return found


def _pem(properties: Mapping[str, str], part: str) -> str:
    """Return a certificate or key, given as text or in a file; "" if neither is given."""
    if pem := properties.get(f"ssl.{part}.pem"):
        return pem
    if not (location := properties.get(f"ssl.{part}.location")):
        return ""
    try:
        return Path(location).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as exc:
        raise MisuseError(
            f"ssl.{part}.location={shown(location)} of Kafka's properties cannot be read ({exc}): name a file in PEM "
            "format"
        ) from exc


def _sasl(properties: Mapping[str, str]) -> dict[str, str]:
    mechanism = properties.get("sasl.mechanisms", properties.get("sasl.mechanism", ""))
    if not mechanism:
        return {}
    found = {"sasl.mechanism": mechanism}
    if mechanism in _LOGIN_MODULES:
        user, password = (_quoted(properties.get(name, "")) for name in ("sasl.username", "sasl.password"))
        login = f"{_LOGIN_MODULES[mechanism]} required username={user} password={password};"
        found["sasl.jaas.config"] = login
    elif mechanism != "GSSAPI":  # which Java configures for the whole process
        raise _refused(f"sasl.mechanisms={shown(mechanism)}", _UNTRANSLATED)
    return found


def _quoted(text: str) -> str:
    """Return a text quoted for JAAS."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _refused(name: str, why: str) -> MisuseError:
    return MisuseError(
        f"Kafka's properties set {name}, which {why}: use another file for Spark (kafka_config=), and give what Java's "
        "client needs as options kafka.NAME"
    )
