"""Runs one subscriber: the module one directory up, and a door for direct calls, which the old ways need.

    python -m txmsg.ops.demo.registration.run_subscriber red_packet

prints `listening on HOST:PORT` when direct calls are answered; messages are consumed from then on.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from typing import Any
from uuid import UUID

from txmsg.ops.demo.registration.web import RegistrationServer
from txmsg.runtime.child import LISTENING, exit_with_parent, say

EFFECTS = {
    "red_packet": "give_red_packet",
    "alipay_account": "open_account",
    "legality_check": "check_legality",
    "social_import": "import_into_social_network",
}
"""Subscriber (module, group and database have one name) to the function that is its effect."""


def main(group: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    exit_with_parent()
    module = importlib.import_module(f"txmsg.ops.demo.examples.user_registration.{group}")
    effect = getattr(module, EFFECTS[group])
    module.create_tables()

    def take_effect(request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with module.SessionLocal.begin() as session:
            effect(session, UUID(request["user_id"]))
        return 200, {}

    server = RegistrationServer(take_effect)
    threading.Thread(target=server.serve_forever, name="direct-calls", daemon=True).start()
    say(f"{LISTENING}{server.address}")
    module.consumer.run()


if __name__ == "__main__":
    main(sys.argv[1])
