"""A request, as pages see it: its database, its language, its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

from txmsg.administration.ask import AskBroker
from txmsg.administration.notify import NotifyAdministration
from txmsg.errors import BrokerUnavailable, MisuseError, PermissionDenied
from txmsg.ops.console.database_poller import DatabasePoller, DatabaseSnapshot
from txmsg.ops.console.identity import UserIdentity
from txmsg.ops.console.logs import NamedLog
from txmsg.ops.console.operations import ConsoleOperation, ConsoleOperations
from txmsg.ops.console.render import Renderer
from txmsg.ops.console.user_databases import UserDatabase
from txmsg.wire.method import Method, ReplyT, RequestT

if TYPE_CHECKING:
    from txmsg.metaq.interface import LogAccess

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PageContext:
    """The argument of the functions of pages and actions. Calls to brokers have timeouts, and raise the errors of
    errors.py.
    """

    desk: UserDatabase
    """The desk of the database in the path."""
    desks: Mapping[str, UserDatabase]
    """The desks of all databases, by name."""
    operations: ConsoleOperations
    logs: Mapping[str, NamedLog] = field(default_factory=dict)
    """MetaQ logs of the database by name."""
    renderer: Renderer
    path: Mapping[str, str]
    """The parameters in the path."""
    values: Mapping[str, str]
    """The query, or the values that a form posted."""

    @property
    def watch(self) -> DatabasePoller:
        """The poller of the database in the path."""
        return self.desk.watch

    @property
    def watches(self) -> Mapping[str, DatabasePoller]:
        """The pollers of all databases, by name."""
        return {name: desk.watch for name, desk in self.desks.items()}

    @property
    def who(self) -> UserIdentity | None:
        """The user who is logged in to this database; None if no login is needed."""
        return self.desk.who

    @property
    def owners(self) -> Set[str]:
        """The owners of the operations that this visitor sees."""
        return {desk.owner for desk in self.desks.values() if not desk.is_refused}

    def t(self, key: str, /, **values: object) -> str:
        """Return a text in the language of the browser."""
        return self.renderer.text(key, **values)

    @property
    def database(self) -> str:
        """The name of the database."""
        return self.watch.name

    def url(self, path: str, /, **query: object) -> str:
        """Return the address of a page of this database; `path` is quoted. Of the query, None and "" are left out."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"/{quote(self.database)}{quote(path)}" + (f"?{urlencode(given)}" if given else "")

    @property
    def snapshot(self) -> DatabaseSnapshot:
        """The newest snapshot. Raises BrokerUnavailable while there is none, PermissionDenied if there will be none."""
        if self.watch.denied:
            raise PermissionDenied(self.watch.denied)
        if self.watch.snapshot is None:
            raise BrokerUnavailable(self.watch.trouble or self.t("state.waiting"))
        return self.watch.snapshot

    async def ask_broker(self, method: Method[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Return the reply of a broker of the database."""
        return await self.watch.database.ask_any(method, request)

    # ---- calls: each `work` is called on a thread

    async def asking(self, work: Callable[[AskBroker], T]) -> T:
        """Run `work`, which asks brokers several times, on a thread. Returns its result."""
        return await self.watch.database.run(lambda: work(self.watch.database.ask_from_thread))

    async def notify(self, work: Callable[[NotifyAdministration], T]) -> T:
        """Ask the administration of groups and dead letters."""
        return await self.watch.database.run(lambda: work(NotifyAdministration(self.watch.database.ask_from_thread)))

    async def log(self, work: Callable[[LogAccess], T]) -> T:
        """Ask the log that the path names. Raises MisuseError for an unknown one."""
        log = self.logs.get(self.path["log"])
        if log is None:
            raise MisuseError(self.t("logs.unknown", name=self.path["log"]))
        return await log.run(self.desk, work)

    def start(self, title: str, total: int, steps: Callable[[NotifyAdministration], Iterator[int]]) -> ConsoleOperation:
        """Start an operation that takes longer than a request. Raises MisuseError while too many run."""
        administration = NotifyAdministration(self.watch.database.ask_from_thread)
        operation = self.operations.start(
            title,
            database=self.database,
            owner=self.desk.owner,
            total=total,
            steps=lambda: steps(administration),
        )
        self.desk.keep_until(operation.ended)
        return operation
