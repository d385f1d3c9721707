"""A handler for processes of its own."""

from __future__ import annotations

import os
from pathlib import Path

from txmsg.message import ReceivedMessage


def note_process(message: ReceivedMessage) -> None:
    """Write the id of the process that ran it to the path in the message."""
    path = Path(message.body.decode())
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
