"""Recognition of SQL text that ends a transaction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmsg.client.flows.sql_text import StatementKind, TransactionStatement, steps

DIALECTS = ("postgresql", "mysql", "mariadb", "sqlite")
BEFORE = (
    "",
    " ",
    "\n\t",
    "-- all\n",
    "/* all */",
    "/**/ -- x\n /* y */",
    "; ;",
    "select 1; ",
    "select ';' ;",
    "(select 1);",
)


def ends(sql: str, dialect_name: str) -> bool:
    return any(step.kind is StatementKind.END for step in steps(sql, dialect_name))


ENDS = """COMMIT | commit; | ROLLBACK | Rollback work | rollback transaction | abort | end | END TRANSACTION | BEGIN
start transaction | prepare transaction 'x' | commit and chain | commit prepared 'x' | begin immediate"""
FREE = """select 1 | select 'commit' | select 1 -- ; commit | select 1 /* ; commit */ | insert into commit values (1)
update t set begin = 1 | select ';', ''';rollback' | select 1 as "; commit" | with a as (select 1) select 1
savepoint commit | rollback to savepoint begin | release savepoint x | insert into t values (1); select 2"""


def each_of(text: str) -> list[str]:
    return [sql.strip() for line in text.splitlines() for sql in line.split(" | ")]


@pytest.mark.parametrize("dialect_name", DIALECTS)
@pytest.mark.parametrize("sql", each_of(ENDS))
def test_text_that_ends_a_transaction_is_found_behind_any_prefix(dialect_name: str, sql: str) -> None:
    assert [before for before in BEFORE if not ends(before + sql, dialect_name)] == []


@pytest.mark.parametrize("dialect_name", DIALECTS)
@pytest.mark.parametrize("sql", ["", *each_of(FREE)])
def test_other_text_is_allowed(dialect_name: str, sql: str) -> None:
    assert not ends(sql, dialect_name)


@pytest.mark.parametrize(
    ("sql", "dialect_name"),
    [
        ("select $$; commit$$", "postgresql"),
        ("select $a$ $$; commit $a$", "postgresql"),
        ("/* /* */ ; commit */ select 1", "postgresql"),
        ("create function f() returns int begin atomic select 1; end", "postgresql"),
        ("create trigger t after insert on a begin delete from b; end", "sqlite"),
        ("select [; commit] from t", "sqlite"),
        ("select `; commit` from t", "mysql"),
        ("select 1 # ; commit", "mysql"),
        ("create temporary table t (id int)", "mysql"),
        ("drop temporary table t", "mysql"),
        ("create or replace temporary table t (id int)", "mariadb"),
        ("analyze select 1", "mariadb"),
        ("set @a = 'autocommit'", "mysql"),
        ("set statement max_statement_time = 1 for select 1", "mariadb"),
        ("create table t (id int)", "postgresql"),
        ("create table t (id int)", "sqlite"),
        ("set local autocommit_mode.x = 1", "postgresql"),
    ],
)
def test_comments_and_quotes_are_read_as_the_dialect_reads_them(sql: str, dialect_name: str) -> None:
    assert not ends(sql, dialect_name)


@pytest.mark.parametrize(
    ("sql", "dialect_name"),
    [
        ("/* /* */ */ commit", "postgresql"),
        ("select $$a$$; commit", "postgresql"),
        ("select $1; commit", "postgresql"),
        ("create function f() returns int begin atomic select 1; end; commit", "postgresql"),
        ("/*!50000 commit */", "mysql"),
        ("/*M!100100 rollback */", "mariadb"),
        ("# x\ncommit", "mysql"),
        ("select 'a\\'; commit", "mysql"),  # where the server has NO_BACKSLASH_ESCAPES
        ("select 'a\\'; commit", "postgresql"),
        ("set statement max_statement_time = 1 for create table t (id int)", "mariadb"),
    ],
)
def test_disguised_text_that_ends_a_transaction_is_found(sql: str, dialect_name: str) -> None:
    assert ends(sql, dialect_name)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("savepoint a", TransactionStatement(StatementKind.SAVEPOINT, "A")),
        ('SAVEPOINT "a"', TransactionStatement(StatementKind.SAVEPOINT, "A")),
        ("release a", TransactionStatement(StatementKind.RELEASE, "A")),
        ("RELEASE SAVEPOINT sa_savepoint_1", TransactionStatement(StatementKind.RELEASE, "SA_SAVEPOINT_1")),
        ("rollback to a", TransactionStatement(StatementKind.ROLLBACK_TO, "A")),
        ("rollback work to savepoint a;", TransactionStatement(StatementKind.ROLLBACK_TO, "A")),
    ],
)
@pytest.mark.parametrize("dialect_name", DIALECTS)
def test_savepoints_are_recognized_with_their_names(dialect_name: str, sql: str, found: TransactionStatement) -> None:
    assert list(steps(sql, dialect_name)) == [found]


@given(sql=st.text(alphabet="ab'\"`$;/*-#!\\[] \n"), dialect_name=st.sampled_from(DIALECTS))
def test_any_text_is_parsed_without_error(sql: str, dialect_name: str) -> None:
    assert list(steps(sql, dialect_name)) == []
