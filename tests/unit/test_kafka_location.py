"""The address of a Kafka and the file of its properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from txmsg.errors import InvalidName, MisuseError, TxmsgError
from txmsg.metaq.kafka.location import OURS, KafkaAddress, parse_address, properties_file, read_properties


def test_an_address_names_servers_and_a_prefix() -> None:
    assert parse_address("kafka://a:9092") == KafkaAddress(("a:9092",))
    found = parse_address("kafka://a:9092,[::1]:9093/shop-")
    assert found == KafkaAddress(("a:9092", "[::1]:9093"), "shop-")
    assert str(found) == "kafka://a:9092,[::1]:9093/shop-"


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("kafka://", "''"),
        ("kafka://a", "'a'"),
        ("kafka://a:1,,b:2", "''"),
        ("kafka://a:70000", "70000"),
        ("kafka://a:1/x/y", "'x/y'"),
        ("kafka://user:secret@a:1", "user:secret@a:1"),
    ],
)
def test_an_invalid_address_is_named(where: str, named: str) -> None:
    with pytest.raises(InvalidName) as refused:
        parse_address(where)
    assert named in str(refused.value)


def test_properties_are_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# ours\n\nsecurity.protocol = SASL_SSL\nsasl.password=a=b#c\n")
    assert read_properties(file) == {"security.protocol": "SASL_SSL", "sasl.password": "a=b#c"}
    assert read_properties(None) == {}


def test_the_environment_variable_names_the_default_properties_file() -> None:
    assert properties_file(None, {}) is None
    assert properties_file(None, {"TXMSG_KAFKA_CONFIG": "a"}) == Path("a")
    assert properties_file("b", {"TXMSG_KAFKA_CONFIG": "a"}) == Path("b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sasl.password secret", "line 1 of .* is not of the form NAME=VALUE"),
        ("\nx=1\nx=2", "line 3 of .* sets x a second time"),
        *((f"{name}=1", f"sets {name}, which is a function") for name in ("stats_cb", "oauth_cb", "on_delivery")),
        *((f"{name}=1", f"sets {name}, which txmsg sets itself") for name in sorted(OURS)),
    ],
)
def test_an_invalid_property_is_named_without_its_secret(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text(text)
    with pytest.raises(MisuseError, match=said) as refused:
        read_properties(file)
    assert "secret" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TxmsgError, match=r"no-file.* cannot be read"):
        read_properties(tmp_path / "no-file")
