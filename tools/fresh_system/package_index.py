"""Settings that a fresh system takes from this one: how pip and git reach their servers. Names no server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

PASSED = re.compile(r"PIP_\w+|\w+_proxy|SSL_CERT_FILE|SSL_CERT_DIR|\w+_CA_BUNDLE|GIT_SSL_CAINFO", re.IGNORECASE)
SYSTEM_FILES = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "/etc/resolv.conf")
USER_FILES = (".config/pip/pip.conf", ".pip/pip.conf")
NOT_PASSED = {"PIP_CACHE_DIR", "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_CONFIG_FILE"}


def passed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the locations of packages."""
    return {name: value for name, value in environment.items() if PASSED.fullmatch(name) and name not in NOT_PASSED}


def passed_files(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the files and directories mounted in a fresh system, and where; with pip.conf of a user.

    Files that pip.conf names, such as a bundle of certificates, are among them.
    """
    configurations = [Path(environment["PIP_CONFIG_FILE"])] if "PIP_CONFIG_FILE" in environment else []
    configurations += [home / name for name in USER_FILES]
    mounts = {name: name for name in SYSTEM_FILES if Path(name).is_file()}
    for path in configurations:
        if path.is_file():
            mounts[str(path)] = "/etc/pip-of-user.conf"
            break
    named = list(passed_environment(environment).values())
    for name in mounts:
        named += re.findall(r"(?m)^[\w-]+ *= *(.*)$", Path(name).read_text(encoding="utf-8"))
    for value in named:
        for word in value.split():
            if word.startswith("/") and len(Path(word).parts) > 2 and Path(word).exists():
                mounts[word] = word
    return mounts
