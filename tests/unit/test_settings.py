"""The catalogue of settings: valid values, their sources, and errors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from txmsg.errors import MisuseError
from txmsg.ops.cli.config import CONFIGS, config_of
from txmsg.ops.cli.settings import ProcessSettings
from txmsg.settings.catalogue import Setting, SettingKind, check_settings, made_of, required, setting, settings_of
from txmsg.settings.sources import SettingValue, from_environment, from_file, from_options, strange_variables


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    pause_failures: int = setting(200, "Failures.", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    storage: str = setting("", "Where.", option="--storage", variable="TXMSG_STORAGE")
    wait_s: float = setting(30.0, "How long.", least=0, most=60, option="--wait-s")
    interval_s: float = setting(1.0, "How often.", least=0, is_open=True)
    body_size_bytes_max: int = setting(1024, "How large.", least=1)
    queues: int = setting(4, "How many.", least=1, most=1024, option="--queues")
    auto_create: bool = setting(True, "Whether.", option="--auto-create")
    log_level: str = setting("info", "How much.", choices=("debug", "info"), option="--log-level")
    topics: tuple[str, ...] | None = setting(None, "Which.", kind=SettingKind.TEXTS, option="--topics")
    delivery: Part = field(default_factory=Part)

    def __post_init__(self) -> None:
        check_settings(self)


CATALOGUE = list(settings_of(Config, "broker"))
BY_NAME = {each.name: each for each in CATALOGUE}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "txmsg.toml"


def refused(file: Path, text: str) -> str:
    file.write_text(text)
    with pytest.raises(MisuseError) as caught:
        from_file(file, CATALOGUE)
    return str(caught.value).replace(str(file), "FILE")


# ---- values


def test_the_kind_of_a_setting_follows_from_default_and_unit() -> None:
    assert {each.name: each.kind for each in CATALOGUE} == {
        "storage": SettingKind.TEXT,
        "wait_s": SettingKind.DURATION,
        "interval_s": SettingKind.DURATION,
        "body_size_bytes_max": SettingKind.SIZE,
        "queues": SettingKind.COUNT,
        "auto_create": SettingKind.FLAG,
        "log_level": SettingKind.CHOICE,
        "topics": SettingKind.TEXTS,
        "delivery.pause_failures": SettingKind.COUNT,
    }


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("wait_s", "30s", 30.0),
        ("wait_s", "500ms", 0.5),
        ("wait_s", "7", 7.0),
        ("wait_s", 7, 7.0),
        ("wait_s", "0s", 0.0),
        ("body_size_bytes_max", "64MiB", 64 * 1024**2),
        ("body_size_bytes_max", "100", 100),
        ("queues", "8", 8),
        ("auto_create", "off", False),
        ("auto_create", True, True),
        ("log_level", "debug", "debug"),
        ("topics", "a* b", ("a*", "b")),
        ("topics", ["a*", "b"], ("a*", "b")),
    ],
)
def test_a_value_is_read_from_text_and_from_toml(name: str, given: object, value: object) -> None:
    assert BY_NAME[name].value_of(given) == value


@pytest.mark.parametrize(
    ("name", "given", "rule"),
    [
        ("wait_s", "soon", "'soon' is not a duration from 0s to 1m; give a number of seconds, or 30s, 12h, 7d"),
        ("wait_s", "nan", "'nan' is not a duration from 0s to 1m"),
        ("wait_s", 61, "61 is not a duration from 0s to 1m"),
        ("wait_s", True, "True is not a duration"),
        ("interval_s", 0, "0 is not a duration above 0s"),
        ("body_size_bytes_max", "4 MB", "'4 MB' is not a size of at least 1; give bytes, or 512KiB, 64MiB, 100GiB"),
        ("queues", "few", "'few' is not a whole number from 1 to 1024"),
        ("queues", 1.5, "1.5 is not a whole number"),
        ("auto_create", "perhaps", "'perhaps' is not true or false"),
        ("log_level", "loud", "'loud' is not one of debug, info"),
        ("topics", [1], "[1] is not a list of texts"),
        ("storage", "a\nb", "is not a text on one line"),
    ],
)
def test_an_invalid_value_is_refused_with_rule_and_remedy(name: str, given: object, rule: str) -> None:
    with pytest.raises(MisuseError, match=re.escape(rule)):
        BY_NAME[name].value_of(given)


def test_an_out_of_bounds_value_from_a_program_is_refused_with_the_field() -> None:
    with pytest.raises(MisuseError, match=r"^interval_s=0 is not a duration above 0s"):
        Config(interval_s=0)
    with pytest.raises(MisuseError, match=r"^queues='4' is not a whole number"):
        Config(queues="4")  # type: ignore[arg-type]


# ---- sources


def test_a_file_sets_values_of_a_scope_and_its_sections_with_line_numbers(file: Path) -> None:
    file.write_text(
        "# how we run\n[metaq]\ndata_dir = '/log'\n\n[broker]\nwait_s = '5s'\ndelivery.pause_failures = 7\n"
    )
    assert from_file(file, CATALOGUE) == {
        "wait_s": SettingValue(5.0, f"{file} line 6"),
        "delivery.pause_failures": SettingValue(7, f"{file} line 7"),
    }
    file.write_text("[broker.delivery]\npause_failures = 8\n")
    assert from_file(file, CATALOGUE) == {"delivery.pause_failures": SettingValue(8, f"{file} line 2")}


def test_an_error_in_a_file_names_line_setting_value_rule_and_remedy(file: Path) -> None:
    assert refused(file, "[broker]\n\nwait_s = 'soon'\n") == (
        "FILE line 3 gives no value for broker.wait_s: the value 'soon' is not a duration from 0s to 1m; "
        "give a number of seconds, or 30s, 12h, 7d"
    )
    assert refused(file, "[broker]\nwait = 5\n") == (
        "FILE line 2: 'broker.wait' is not a setting: did you mean broker.wait_s? `txmsg config explain` lists all"
    )
    assert "did you mean broker.delivery.pause_failures?" in refused(file, "[broker]\ndelivery.pause_failure = 5\n")
    assert "did you mean broker?" in refused(file, "[brokr]\nwait_s = 5\n")
    assert refused(file, "[broker\n").startswith("FILE is not a file of settings in TOML: ")


def test_a_missing_file_is_an_error(file: Path) -> None:
    with pytest.raises(MisuseError, match=r"the settings cannot be read from .*txmsg\.toml: No such file"):
        from_file(file, CATALOGUE)


def test_a_variable_sets_a_value_and_an_empty_one_does_not() -> None:
    environment = {"TXMSG_BROKER_QUEUES": "9", "TXMSG_BROKER_WAIT_S": "", "TXMSG_STORAGE": "postgresql://x"}
    assert from_environment(environment, CATALOGUE) == {
        "queues": SettingValue(9, "TXMSG_BROKER_QUEUES"),
        "storage": SettingValue("postgresql://x", "TXMSG_STORAGE"),
    }
    with pytest.raises(
        MisuseError, match=r"^TXMSG_BROKER_DELIVERY_PAUSE_FAILURES gives no value for broker.delivery.pause_failures: "
    ):
        from_environment({"TXMSG_BROKER_DELIVERY_PAUSE_FAILURES": "x"}, CATALOGUE)


def test_an_unknown_variable_with_the_prefix_is_warned_of_unless_a_platform_set_it() -> None:
    environment = {"TXMSG_BROKER_QUEUE": "9", "TXMSG_BROKER_SERVICE_HOST": "10.0.0.1", "TXMSG_BROKERS": "a:7700"}
    assert list(strange_variables(environment, CATALOGUE)) == [
        "the variable TXMSG_BROKER_QUEUE is not a setting and is ignored: did you mean TXMSG_BROKER_QUEUES?"
    ]


def test_options_take_precedence_over_the_environment_and_that_over_the_file(file: Path) -> None:
    file.write_text("[broker]\nqueues = 1\nwait_s = 1\ninterval_s = 1\n")
    given = from_file(file, CATALOGUE)
    given |= from_environment({"TXMSG_BROKER_QUEUES": "2", "TXMSG_BROKER_WAIT_S": "2"}, CATALOGUE)
    given |= from_options({"queues": 3, "wait_s": None, "topics": ()}, CATALOGUE)
    settings = ProcessSettings(Config, "broker", given)
    assert settings.make() == Config(queues=3, wait_s=2.0, interval_s=1.0)
    sources = {name: value.source for name, value in settings.all().items()}
    assert sources["queues"] == "--queues"
    assert sources["wait_s"] == "TXMSG_BROKER_WAIT_S"
    assert sources["interval_s"] == f"{file} line 4"
    assert sources["body_size_bytes_max"] == "default"


def test_an_empty_repeated_option_means_an_empty_list() -> None:
    assert from_options({"topics": ("",)}, CATALOGUE) == {"topics": SettingValue((), "--topics")}


def test_sections_are_built_from_their_own_values() -> None:
    made = made_of(Config, {"delivery.pause_failures": 7, "queues": 8})
    assert made == Config(queues=8, delivery=Part(pause_failures=7))


def test_a_required_setting_has_no_default() -> None:
    @dataclass(kw_only=True)
    class WithRequired:
        root: str = required("Where.", kind=SettingKind.TEXT, option="--root")

    [found] = settings_of(WithRequired, "metaq")
    assert found.shown_default() == "none; it must be given"
    with pytest.raises(TypeError):
        made_of(WithRequired, {})


def test_passwords_are_not_shown() -> None:
    shown = BY_NAME["storage"].show("postgresql://notify:geheim@db/notify?password=geheim&x=1")
    assert "geheim" not in shown
    assert "notify:***@db" in shown


# ---- the real settings


def all_settings() -> list[Setting]:
    return [each for scope in CONFIGS for each in settings_of(config_of(scope), scope)]


@pytest.mark.parametrize("entry", all_settings(), ids=lambda each: each.full_name)
def test_every_entry_has_a_text_and_a_valid_default(entry: Setting) -> None:
    assert entry.meaning.endswith(".")
    assert entry.variable.startswith("TXMSG_")
    assert not entry.option or re.fullmatch("--[a-z-]+", entry.option)
    if entry.default not in (None, "") and not entry.default_shown:
        assert entry.value_of(entry.in_words(entry.default)) == entry.default


def test_variable_names_are_unambiguous() -> None:
    variables = [(each.scope, each.variable) for each in all_settings()]
    assert len(set(variables)) == len(variables)
