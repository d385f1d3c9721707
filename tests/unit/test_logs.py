"""Log events: each has a name and its fields, as text or as JSON, and every log call of txmsg has one."""

from __future__ import annotations

import io
import json
import logging
import logging.handlers
import queue
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from tools.events_page import AREAS, PLACEHOLDER, calls, calls_in
from txmsg.errors import StorageError
from txmsg.runtime.logs import EventLog, JsonFormatter, StderrLines, TextFormatter, name_process

ROOT = Path(__file__).parents[2]
_log = EventLog("txmsg.tested")
ID = UUID(int=7)


class _Written:
    """The output of this test's logger."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(JsonFormatter())

    def line(self) -> dict[str, object]:
        [line] = self.stream.getvalue().splitlines()
        found = json.loads(line)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def written() -> Iterator[_Written]:
    logger = logging.getLogger("txmsg.tested")
    made = _Written()
    logger.addHandler(made.handler)
    logger.setLevel(logging.INFO)
    yield made
    logger.removeHandler(made.handler)
    logger.setLevel(logging.NOTSET)


def test_a_line_of_json_has_the_event_and_its_fields(written: _Written) -> None:
    before = datetime.now(UTC)
    _log.warning("half.parked", "%(halves)d halves of %(group)s", halves=3, group="g", transaction_id=ID)
    line = written.line()
    time = str(line.pop("time"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert abs((datetime.fromisoformat(time) - before).total_seconds()) < 60
    assert line == {
        "level": "warning",
        "logger": "txmsg.tested",
        "event": "half.parked",
        "message": "3 halves of g",
        "halves": 3,
        "group": "g",
        "transaction_id": str(ID),
    }


def test_a_json_line_contains_traceback_and_error(written: _Written) -> None:
    try:
        raise StorageError("no room\n2026 ERROR forged \u202e \x9b 表")
    except StorageError as exc:
        _log.exception("write.refused", "refused: %(error)s", error=exc)
    line = written.line()  # one line, whatever the error text
    assert written.stream.getvalue().isascii()
    assert line["error"] == "no room\n2026 ERROR forged \u202e \x9b 表"
    assert str(line["exception"]).startswith("Traceback")
    assert "test_logs.py" in str(line["exception"])


def test_records_of_other_loggers_have_no_event(written: _Written) -> None:
    logging.getLogger("txmsg.tested.other").info("retried %d times", 3)
    assert written.line().keys() == {"time", "level", "logger", "message"}
    assert written.line()["message"] == "retried 3 times"


def test_numbers_unknown_to_json_become_text(written: _Written) -> None:
    _log.warning("a.b", "lag %(lag_s)s", lag_s=float("nan"), rate=float("-inf"), share=0.5, parts={"x": float("inf")})
    line = written.line()
    assert (line["lag_s"], line["rate"], line["share"], line["parts"]) == ("nan", "-inf", 0.5, "{'x': inf}")
    assert "NaN" not in written.stream.getvalue()


@pytest.mark.parametrize("used", ["1.0", {"a": 1}, {"event": 7}, {"event": "x", 3: 4}, ["event"]])
def test_a_foreign_attribute_with_a_txmsg_name_is_left_out(written: _Written, used: object) -> None:
    logging.getLogger("txmsg.tested.other").info("hello", extra={"txmsg": used})
    assert written.line().keys() == {"time", "level", "logger", "message"}


def test_each_line_names_the_process(written: _Written) -> None:
    root = logging.getLogger()
    root.addHandler(written.handler)
    try:
        name_process("broker b-1")
    finally:
        root.removeHandler(written.handler)
    _log.info("segment.opened", "segment %(segment)d is open", segment=2)
    assert written.line()["process"] == "broker b-1"


def test_the_text_format_has_only_the_message(written: _Written) -> None:
    written.handler.setFormatter(TextFormatter())
    _log.error("topic.deleted", "topic %(topic)s is gone, 100%% of it", topic="a\nb", queue=1)
    _log.info("check.looked", "nothing is due, 0 % of all")
    first, second = written.stream.getvalue().splitlines()
    assert first.endswith("ERROR   txmsg.tested: topic a\\nb is gone, 100% of it")
    assert second.endswith("INFO    txmsg.tested: nothing is due, 0 % of all")


def test_a_record_names_the_line_of_the_call(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "txmsg.tested"):
        _log.debug("a.b", "one")
        _log.info("a.b", "two")
        _log.warning("a.b", "three")
        _log.error("a.b", "four")
        _log.log(logging.INFO, "a.b", "five")
    assert {record.funcName for record in caplog.records} == {"test_a_record_names_the_line_of_the_call"}
    assert [record.levelno for record in caplog.records] == [10, 20, 30, 40, 20]


def test_a_disabled_level_writes_nothing(written: _Written) -> None:
    _log.debug("a.b", "nothing")
    assert written.stream.getvalue() == ""


def test_an_event_survives_a_queue_handler(written: _Written) -> None:
    logger, passed = logging.getLogger("txmsg.tested"), queue.SimpleQueue[logging.LogRecord]()
    logger.removeHandler(written.handler)
    queued = logging.handlers.QueueHandler(passed)
    logger.addHandler(queued)
    _log.info("group.moved", "group %(group)s", group="g")
    logger.removeHandler(queued)
    written.handler.handle(passed.get_nowait())
    assert (written.line()["event"], written.line()["group"], written.line()["message"]) == (
        "group.moved",
        "g",
        "group g",
    )


def test_a_custom_record_factory_may_set_attributes_named_like_txmsg_fields(
    written: _Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    def factory(*args: object, **kwargs: object) -> logging.LogRecord:
        record = logging.LogRecord(*args, **kwargs)  # type: ignore[arg-type]
        record.transaction_id = record.topic = record.event = "of the request"
        return record

    monkeypatch.setattr(logging, "_logRecordFactory", factory)
    _log.info("half.parked", "parked", transaction_id=ID, topic="t")
    assert written.line()["transaction_id"] == str(ID)


def test_a_text_that_does_not_match_its_fields_does_not_raise(
    written: _Written, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("txmsg.tested"), "propagate", False)  # pytest's own handler would raise
    _log.info("a.b", "%(count)d", count="many")
    assert "Logging error" in capsys.readouterr().err
    assert written.stream.getvalue() == ""


def test_a_value_whose_str_raises_does_not_lose_the_line(written: _Written) -> None:
    class FailingStr:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    _log.info("handler.raised", "a handler raised", error=FailingStr())
    assert written.line()["error"] == "<FailingStr, whose __str__ raised>"


# ---- all calls in the code


def test_every_event_has_a_name_of_a_known_area() -> None:
    found = list(calls())
    assert len(found) > 150
    assert [each for each in found if not re.fullmatch(r"[a-z]+\.[a-z]+(_[a-z]+)*", each.event)] == []
    logged = {each.event.partition(".")[0] for each in found if each.method != "debug"}
    assert logged == AREAS.keys()


def test_texts_use_only_given_fields_and_fields_do_not_shadow_attributes() -> None:
    reserved = {"time", "level", "logger", "process", "event", "message", "exception", "text", "self"}
    for each in calls():
        where = f"{each.module}:{each.line}"
        rest = PLACEHOLDER.sub("", each.text)
        assert set(PLACEHOLDER.findall(each.text)) <= set(each.fields), where
        assert not re.search(r"%[^ %]", rest), f"{where} has a placeholder without a name"
        assert not reserved & set(each.fields), where


def test_a_call_with_a_non_literal_event_is_found() -> None:
    with pytest.raises(ValueError, match=r"a\.py:2"):
        list(calls_in("def f(error):\n    _log.warning(error)\n", "a.py"))
    with pytest.raises(ValueError, match=r"a\.py:1"):
        list(calls_in("self._log.log(level, name, 'text')", "a.py"))


def test_no_module_bypasses_its_event_log() -> None:
    past = re.compile(r"\blogging\.(getLogger|debug|info|warning|error|exception|critical)\(|before_sleep_log")
    modules = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "txmsg").rglob("*.py")}
    assert [name for name, text in modules.items() if past.search(text)] == ["txmsg/runtime/logs.py"]
    with_log = {name for name, text in modules.items() if "EventLog(__name__)" in text}
    assert len(with_log) > 50
    assert [name for name in with_log if "_log = EventLog(__name__)" not in modules[name]] == []


class FullFor(io.StringIO):
    """A file on a disk that is full for some writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def write(self, text: str) -> int:
        if self.left:
            self.left -= 1
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_lines_of_other_processes_are_written_after_a_failed_write(monkeypatch: pytest.MonkeyPatch) -> None:
    file = FullFor(2)
    monkeypatch.setattr("sys.stderr", file)
    write = StderrLines()
    for line in ("one", "two", "three", "four"):
        write(line)
    assert file.getvalue().splitlines() == [
        "lines may be missing here: [Errno 28] No space left on device",
        "three",
        "four",
    ]
    file.close()
    write("five")
