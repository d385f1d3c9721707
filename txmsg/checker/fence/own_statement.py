"""Statements that write txmsg's own rows: compiled once for each dialect and schema, and sent as text.

SQLAlchemy takes longer to look up what a statement compiles to, and to bind its values, than a driver takes to send it.
Where the application listens to statements, these are sent as any other, so that it hears of them and may change them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, Insert

from txmsg.checker.fence.with_begin import begin_with, literals_of, not_begun

unheard: Final[set[Callable[..., Any]]] = set()
"""txmsg's own listeners, which need not see these statements."""

_COUNTED: Final = {"preserve_rowcount": True}


class _Text(NamedTuple):
    """A compiled statement. order: of its parameters; None if they are passed by name."""

    sql: str
    processors: Mapping[str, Callable[[Any], object]]
    """Functions that convert a value for the driver, by parameter."""
    order: tuple[str, ...] | None

    def parameters(self, values: Mapping[str, object]) -> tuple[object, ...] | Mapping[str, object]:
        """Return the parameters of one execution, as the driver takes them."""
        if self.processors:
            values = {name: self._processed(name, value) for name, value in values.items()}
        return values if self.order is None else tuple([values[name] for name in self.order])

    def _processed(self, name: str, value: object) -> object:
        process = self.processors.get(name)
        return value if process is None else process(value)


class OwnStatement:
    """An INSERT with a parameter for each of its values, none of them constant."""

    def __init__(self, statement: Insert) -> None:
        self._statement = statement.execution_options(**_COUNTED)
        self._texts: WeakKeyDictionary[Dialect, dict[str | None, _Text]] = WeakKeyDictionary()

    def execute(
        self, connection: Connection, values: Mapping[str, object], schemas: Mapping[str | None, str | None] | None
    ) -> int:
        """Execute the INSERT and return the number of rows written.

        schemas: their `schema_translate_map`; None: that of the connection.
        """
        if _is_heard(connection):
            options = {} if schemas is None else {"schema_translate_map": schemas}
            return connection.execute(self._statement, dict(values), execution_options=options).rowcount
        if schemas is None:
            schemas = connection.get_execution_options().get("schema_translate_map") or {}
        text = self._text(connection.dialect, schemas.get(None))
        driver = not_begun(connection)
        if driver is not None and (literals := literals_of(values)) is not None:
            return begin_with(connection, driver, text.sql, values, literals)
        return connection.exec_driver_sql(text.sql, text.parameters(values), execution_options=_COUNTED).rowcount

    def _text(self, dialect: Dialect, schema: str | None) -> _Text:
        texts = self._texts.get(dialect)
        if texts is None:
            texts = self._texts[dialect] = {}
        text = texts.get(schema)
        if text is None:
            text = texts[schema] = _compiled(self._statement, dialect, schema)
        return text


def _is_heard(connection: Connection) -> bool:
    """Return True if the application listens to the statements of this connection, or has them logged."""
    heard = connection.dispatch
    below: Any = connection.dialect
    if connection._echo or heard.before_execute or heard.after_execute or below.dispatch.do_execute:
        return True
    return any(each not in unheard for each in (*heard.before_cursor_execute, *heard.after_cursor_execute))


def _compiled(statement: Insert, dialect: Dialect, schema: str | None) -> _Text:
    schemas = None if schema is None else {None: schema}
    compiled: Any = statement.compile(
        dialect=dialect, schema_translate_map=schemas, render_schema_translate=schemas is not None
    )
    processors = {}
    for name in compiled.bind_names.values():
        process = compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect)
        if process is not None:
            processors[name] = process
    return _Text(compiled.string, processors, tuple(compiled.positiontup) if compiled.positional else None)
