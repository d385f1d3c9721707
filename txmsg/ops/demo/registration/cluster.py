"""The service's processes: alike, stateless, started again whenever one dies. Counts the deaths that were ordered."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from txmsg.runtime.child import Child, ChildFailed

_UP_S_MAX = 300.0  # longer than a process may take: one that is not ready says so itself


@dataclass(slots=True, eq=False)
class Instance:
    """A place in the cluster. `child` is None while it starts; `doomed`: its present process is to be killed."""

    name: str
    child: Child | None = None
    doomed: bool = False


class ServiceCluster:
    """`size` processes made by `start`, each watched by a thread of its own."""

    def __init__(self, start: Callable[[str], Child], *, size: int) -> None:
        self._start = start
        self._instances = [Instance(f"service-{i}") for i in range(size)]
        self._changed = threading.Condition()
        self._stopping = False
        self._failure: ChildFailed | None = None
        self._crashes = 0
        self._keepers = [
            threading.Thread(
                target=self._restart_repeatedly, args=(instance,), name=f"keeper of {instance.name}", daemon=True
            )
            for instance in self._instances
        ]

    def __enter__(self) -> Self:
        for keeper in self._keepers:
            keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopping = True
            children = [instance.child for instance in self._instances if instance.child is not None]
            self._changed.notify_all()
        for child in children:
            child.stop()
        for keeper in self._keepers:
            keeper.join()

    @property
    def crashes(self) -> int:
        """Processes killed so far."""
        return self._crashes

    def pick(self, *, doom: bool = False) -> tuple[Instance, Child]:
        """Any process that is up; waits for one. `doom` picks one that is not doomed yet, and marks it."""

        def ready() -> list[Instance]:
            return [i for i in self._instances if i.child is not None and not (doom and i.doomed)]

        with self._changed:
            if not self._changed.wait_for(lambda: self._failure or self._stopping or ready(), _UP_S_MAX):
                raise ChildFailed(f"no service process came up within {_UP_S_MAX:.0f} s")
            if self._failure is not None:
                raise self._failure
            if self._stopping:
                raise ChildFailed("the cluster is being stopped")
            instance = random.choice(ready())
            instance.doomed = instance.doomed or doom
            assert instance.child is not None
            return instance, instance.child

    def kill_doomed(self) -> None:
        """Kills the processes whose crash point no request passed."""
        with self._changed:
            children = [i.child for i in self._instances if i.child is not None and i.doomed]
        for child in children:
            child.kill()

    def wait_all_up(self) -> None:
        with self._changed:
            up = self._changed.wait_for(
                lambda: self._failure or all(i.child is not None and not i.doomed for i in self._instances), _UP_S_MAX
            )
            if self._failure is not None:
                raise self._failure
            if not up:
                raise ChildFailed(f"not all service processes are up after {_UP_S_MAX:.0f} s")

    def _restart_repeatedly(self, instance: Instance) -> None:
        while not self._stopping:
            child = self._start(instance.name)
            try:
                child.wait_ready()
                self._enter(instance, child)
                child.wait()
                self._leave(instance, child)
            except ChildFailed as exc:
                with self._changed:
                    if not self._stopping:
                        self._failure = exc
                    self._changed.notify_all()
                return
            finally:
                child.stop()

    def _enter(self, instance: Instance, child: Child) -> None:
        with self._changed:
            if self._stopping:
                child.stop()
            instance.child = child
            instance.doomed = False
            self._changed.notify_all()

    def _leave(self, instance: Instance, child: Child) -> None:
        with self._changed:
            instance.child = None
            if self._stopping:
                return
            if child.returncode != -signal.SIGKILL or not instance.doomed:
                raise ChildFailed(f"{child.name} ended unasked with {child.returncode}:\n{child.log_tail()}")
            self._crashes += 1
            self._changed.notify_all()
