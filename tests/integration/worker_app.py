"""An application for tests of `txmsg worker`: its handlers write to the file that WORKER_NOTES names."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from txmsg import ReceivedMessage, Router, Txmsg
from txmsg.runtime.signals import has_come

NOTES = Path(os.environ.get("WORKER_NOTES", "notes"))
app = Txmsg()
router = Router(group="slow")
app.include(router)
broken = Txmsg(group="g")
broken.include(router)
empty = Txmsg()
of_log = Txmsg(group="reader")


def note(what: str) -> None:
    with NOTES.open("a", encoding="utf-8") as notes:
        notes.write(f"{what}\n")


@router.subscribe("slow", concurrency=3)
def take_time(message: ReceivedMessage) -> None:
    note(f"began {message.key} in {os.getpid()}")
    time.sleep(0.5)  # it computes
    print("printed by a handler")
    note(f"ended {message.key}")


@app.subscribe("quick", group="quick", rate=1000)
async def be_quick(message: ReceivedMessage) -> None:
    note(f"ended {message.key}")


@app.subscribe("endless", group="endless")
def wait(message: ReceivedMessage) -> None:
    note("began to wait")
    threading.Event().wait()


@app.on_shutdown
def say_so() -> None:
    note("left in order")


@of_log.subscribe("lines", source="log")
def read(message: ReceivedMessage) -> None:
    note(f"began {message.key} in {os.getpid()}")
    time.sleep(0.2)  # it computes
    note(f"ended {message.key}")


of_log.on_shutdown(say_so)


@broken.on_startup
def break_down() -> None:
    raise ConnectionError("the database of the application is away")


def say_when_it_stops() -> None:
    while not has_come():
        time.sleep(0.01)
    note("stops")


if __name__ == "__main__":
    app.close_timeout_s = 600.0
    app.groups = ("endless",)
    threading.Thread(target=say_when_it_stops, daemon=True).start()
    app.run()
