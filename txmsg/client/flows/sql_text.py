"""Recognition of SQL text that ends a transaction, commits it implicitly, or sets a savepoint. Reads text and knows no
database.

Texts are read as the dialect reads them: comments, strings, dollar quotes, several statements in one text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import cache, lru_cache
from typing import Final, NamedTuple


class StatementKind(Enum):
    """The effect of a statement on its transaction."""

    END = "end"
    SAVEPOINT = "savepoint"
    ROLLBACK_TO = "rollback to"
    RELEASE = "release"


class TransactionStatement(NamedTuple):
    """One statement that does something to its transaction. text: its first words, or the name of the savepoint."""

    kind: StatementKind
    text: str


_ENDS: Final = frozenset({"ABORT", "BEGIN", "COMMIT", "END", "ROLLBACK", "START"})

_COMMITS_IMPLICITLY: Final = frozenset(
    {
        *("ALTER", "ANALYZE", "BACKUP", "CACHE", "CHANGE", "CHECK", "CREATE", "DROP", "FLUSH", "GRANT", "IMPORT"),
        *("INSTALL", "LOCK", "OPTIMIZE", "RENAME", "REPAIR", "RESET", "REVOKE", "SHUTDOWN", "STOP", "TRUNCATE"),
        *("UNINSTALL", "UNLOCK", "XA"),
    }
)
"""First words of MySQL's and MariaDB's statements that commit the transaction that they are sent in."""

_MYSQL: Final = ("mysql", "mariadb")
_READ: Final = _ENDS | _COMMITS_IMPLICITLY | {"SAVEPOINT", "RELEASE", "PREPARE", "SET", "LOAD"}

_FIRST_WORD: Final = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*(?![!M])(?:[^*/]|\*(?!/)|/(?!\*))*\*/)*([A-Za-z]+)")
"""The first word behind plain comments; other beginnings are read by the long way."""


_MARK_OF_COMMENT: Final = re.compile(r"/\*|\*/")


def first_word(sql: str) -> str:
    """Return the first word in upper case; "" if the text begins with anything other than white space, comments and a
    word."""
    found = _FIRST_WORD.match(sql)
    return found[1].upper() if found else ""


_KEPT_CHARACTERS_MAX: Final = 4096


def steps(sql: str, dialect_name: str) -> Sequence[TransactionStatement]:
    """Return the effects of the statements of `sql` on the transaction, in their order. Quick for a statement without
    any."""
    # A session sends the same texts again and again. Longer ones have values in them.
    return _kept_steps(sql, dialect_name) if len(sql) <= _KEPT_CHARACTERS_MAX else _read_steps(sql, dialect_name)


def _read_steps(sql: str, dialect_name: str) -> Sequence[TransactionStatement]:
    word = first_word(sql)
    # The usual statement is decided by its first word; the full tokenizer runs for the few that could end a
    # transaction.
    if word and word not in _READ and ";" not in sql:
        return ()
    found = _steps(sql, dialect_name, backslash=dialect_name in _MYSQL)
    if "\\" in sql:  # whether it escapes depends on settings: what either reading finds counts
        other = _steps(sql, dialect_name, backslash=dialect_name not in _MYSQL)
        found += [step for step in other if step not in found]
    return tuple(found)


_kept_steps: Final = lru_cache(maxsize=512)(_read_steps)


def _steps(sql: str, dialect_name: str, *, backslash: bool) -> list[TransactionStatement]:
    found = []
    in_body = False
    for words in _statements(sql, dialect_name, backslash=backslash):
        if in_body:  # of a function or trigger, which is stored and does not run
            in_body = words[0] != "END"
        elif dialect_name not in _MYSQL and words[0] == "CREATE" and "BEGIN" in words:
            in_body = True
        elif step := _step(words, dialect_name):
            found.append(step)
    return found


def _step(words: list[str], dialect_name: str) -> TransactionStatement | None:
    first = words[0]
    if first == "SAVEPOINT":
        return TransactionStatement(StatementKind.SAVEPOINT, _name(words))
    if first == "RELEASE":
        return TransactionStatement(StatementKind.RELEASE, _name(words))
    if first == "ROLLBACK" and "TO" in words[1:3]:
        return TransactionStatement(StatementKind.ROLLBACK_TO, _name(words))
    if first in _ENDS or words[:2] == ["PREPARE", "TRANSACTION"]:
        return TransactionStatement(StatementKind.END, " ".join(words[:2]))
    if dialect_name in _MYSQL and _commits_implicitly(words):
        return TransactionStatement(StatementKind.END, " ".join(words[:2]))
    return None


def _commits_implicitly(words: list[str]) -> bool:
    match words:
        case ["CREATE" | "DROP", "TEMPORARY", "TABLE", *_] | ["CREATE", "OR", "REPLACE", "TEMPORARY", "TABLE", *_]:
            return False
        case ["ANALYZE", *rest]:  # of MariaDB, with a statement: explains it
            return "TABLE" in rest[:2]
        case ["SET", "STATEMENT", *rest] if "FOR" in rest[:-1]:
            rest = rest[rest.index("FOR") + 1 :]
            return rest[0] in _ENDS or _commits_implicitly(rest)
        case ["SET", *rest]:
            return not {"AUTOCOMMIT", "PASSWORD"}.isdisjoint(rest) or rest[:1] == ["DEFAULT"]
    return words[0] in _COMMITS_IMPLICITLY or words[:2] == ["LOAD", "INDEX"]


def _name(words: list[str]) -> str:
    """Return the name of a savepoint, which comes last, without quotes and case: two spellings of one name must not
    count as two."""
    return words[-1].strip('"`[]').upper()


def _statements(sql: str, dialect_name: str, *, backslash: bool) -> list[list[str]]:
    """Return the words of each statement in upper case, quoted names with their quotes, without strings and
    comments."""
    statements: list[list[str]] = [[]]
    at = 0
    tokens = _tokens(dialect_name, backslash=backslash)
    while at < len(sql):
        token = tokens.match(sql, at)
        assert token is not None, "the last alternative takes any character"
        at = token.end()
        match token.lastgroup:
            case "nested":
                at = _end_of_nested(sql, at)
            case "dollar":
                end = sql.find(token[0], at)
                at = len(sql) if end < 0 else end + len(token[0])
            case "word":
                statements[-1].append(token[0].upper())
            case "end":
                statements.append([])
    return [words for words in statements if words]


def _end_of_nested(sql: str, at: int) -> int:
    depth = 1
    while depth and (mark := _MARK_OF_COMMENT.search(sql, at)):
        depth += 1 if mark[0] == "/*" else -1
        at = mark.end()
    return len(sql) if depth else at


@cache
def _tokens(dialect_name: str, *, backslash: bool) -> re.Pattern[str]:
    is_mysql = dialect_name in _MYSQL
    within = r"(?:[^{0}\\]|{0}{0}|\\.)*" if backslash else r"(?:[^{0}]|{0}{0})*"
    name_within = within if is_mysql else r"(?:[^{0}]|{0}{0})*"
    word = r"[A-Za-z_][A-Za-z_0-9$]*|\"" + name_within.format('"') + r"(?:\"|\Z)|`[^`]*(?:`|\Z)"
    parts = [r"(?P<string>'" + within.format("'") + r"(?:'|\Z))", r"(?P<end>;)", r"(?P<line>--[^\n]*)"]
    # The dialects differ in what hides a COMMIT from them: nested comments and dollar quotes in PostgreSQL, executed
    # comments in MySQL, brackets in SQLite.
    match dialect_name:
        case "mysql" | "mariadb":  # what stands in /*! ... */ is run
            parts += [r"(?P<hash>\#[^\n]*)", r"(?P<run>/\*M?![0-9]*|\*/)", r"(?P<comment>/\*.*?(?:\*/|\Z))"]
        case "postgresql":
            parts += [r"(?P<nested>/\*)", r"(?P<dollar>\$(?:[A-Za-z_][A-Za-z_0-9]*)?\$)"]
        case _:
            parts += [r"(?P<comment>/\*.*?(?:\*/|\Z))"]
            word += r"|\[[^\]]*\]"
    return re.compile("|".join([*parts, f"(?P<word>{word})", r"(?P<other>[0-9]+|.)"]), re.DOTALL)
