"""Runs the registration service: `register` of service.py behind HTTP, the old ways beside it, crash points around it.

    SUBSCRIBERS='{"red_packet": "127.0.0.1:4000", ...}' python -m txmsg.ops.demo.registration.run_service

A request holds user_id, email, way ("serial", "parallel" or "message") and, if this process is to die, crash: the
point. Answers: 201 registered, 409 there is such a user, 422 the business says no, 503 nothing has happened: try again.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any
from uuid import UUID

from sqlalchemy.exc import IntegrityError

from txmsg.errors import BrokerUnavailable
from txmsg.ops.demo.examples.user_registration import service
from txmsg.ops.demo.registration import crash_points
from txmsg.ops.demo.registration.ways import DirectCalls
from txmsg.ops.demo.registration.web import RegistrationServer
from txmsg.runtime.child import LISTENING, exit_with_parent, say

CALLERS_MAX = 16


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    exit_with_parent()
    service.producer.start()
    direct = DirectCalls(json.loads(os.environ["SUBSCRIBERS"]), callers=CALLERS_MAX)
    fuse = crash_points.install(service.SessionLocal, service.producer)
    ways = {
        "serial": direct.register_serially,
        "parallel": direct.register_in_parallel,
        "message": service.register,
    }

    def answer(request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if request.get("crash"):
            fuse.arm(crash_points.CrashPoint(request["crash"]))
        try:
            ways[request["way"]](UUID(request["user_id"]), request["email"])
        except service.RegistrationRefused as exc:
            return 422, {"error": str(exc)}
        except IntegrityError as exc:
            return 409, {"error": str(exc.orig)}
        except BrokerUnavailable as exc:
            # Raised only while the half message is sent: the business function has not run.
            return 503, {"error": str(exc)}
        return 201, {}

    server = RegistrationServer(answer)
    say(f"{LISTENING}{server.address}")
    server.serve_forever()


if __name__ == "__main__":
    main()
