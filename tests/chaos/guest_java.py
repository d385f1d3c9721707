"""RocketMQ's official client for Java: the programs of `tests/chaos/java`, which do what those for Python do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.chaos.business import GIVE_UP_S
from tests.chaos.history import (
    DURABILITY,
    GROUPS_WITH_GUESTS,
    HALF_TOPICS,
    HELD_BY_GUESTS_S,
    PULLED,
    PUSHED,
    STORY_TOPIC,
)
from tests.maven import are_at_hand, jars
from tests.rocketmq import programs
from txmsg.runtime.child import ChildProcess, Spawn, spawn_program

PROGRAMS: Mapping[str, str] = {"guest_producer": "GuestProducer", "guest_consumer": "GuestConsumer"}
"""Java programs by their Python counterparts."""
HOW_TO_INSTALL = programs.JAVA.how_to_install
_HERE = Path(__file__).parent / "java"
_DRIVER = "postgresql-jdbc-42.7.14"
_OPTIONS = ("-Xmx128m", *programs.JAVA_OPTIONS)
"""Small heaps: several run beside a whole cluster."""
_WORLD: Mapping[str, object] = {
    "topics": list(DURABILITY),
    "half_topics": HALF_TOPICS,
    "story_topic": STORY_TOPIC,
    "pushed": PUSHED,
    "pulled": PULLED,
    "pulled_topics": list(GROUPS_WITH_GUESTS[PULLED]),
    "held_s": HELD_BY_GUESTS_S,
    "give_up_s": GIVE_UP_S,
}
"""Values that Python programs read from other modules."""


def is_installed() -> bool:
    """Return True if there is a JDK, and the jars or a Maven to download them."""
    return programs.JAVA.is_installed() and are_at_hand(_DRIVER)


def orders_with_world(orders: str) -> str:
    """Return the only argument of a Java program, made from the one for Python."""
    return json.dumps(json.loads(orders) | _WORLD)


def class_path() -> str:
    """Return the class path of the programs; compiles them if needed."""
    libraries = f"{programs.java_jars()}/*{os.pathsep}{jars(_DRIVER, 'org.postgresql:postgresql:42.7.14')}/*"
    return f"{programs.compiled_java(libraries, *_HERE.glob('*.java'))}{os.pathsep}{libraries}"


def spawned(class_path: str, home: Path) -> Spawn:
    """Start a Java program whose client logs below `home`."""

    def spawn(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> ChildProcess:
        java = shutil.which("java")
        assert java is not None
        return spawn_program([java, *_OPTIONS, f"-Duser.home={home}", "-cp", class_path, *command], environment, stderr)

    return spawn
