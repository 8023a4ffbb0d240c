"""Finds the Java that runs the servers: JAVA_HOME if set, else `java` on the PATH, version 17 or newer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from zkrebalancer.localcluster import commands
from zkrebalancer.localcluster.errors import MissingToolError

OLDEST_VERSION = 17
VERSION_TIMEOUT_S = 30
_INSTALL = f"install a JDK {OLDEST_VERSION} or newer and set JAVA_HOME to it, or put its java on the PATH"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find_java(environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of a `java` of at least OLDEST_VERSION.

    Raises:
        MissingToolError: there is no java, it does not run, or it is too old.

    """
    java = _locate(environment)
    try:
        answer = commands.run([java, "-version"], VERSION_TIMEOUT_S)
        answer.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingToolError(f"{java} -version failed ({error}): {_INSTALL}") from None
    version = parse_version(answer.stderr + answer.stdout)
    if version is None:
        raise MissingToolError(f"{java} -version prints no version: {_INSTALL}")
    if version < OLDEST_VERSION:
        raise MissingToolError(f"{java} is Java {version}: {_INSTALL}")
    return java


def parse_version(text: str) -> int | None:
    """Return the feature release (8, 17, …) from the output of `java -version`, None if there is none."""
    found = _VERSION.search(text)
    return int(found[1]) if found else None


def _locate(environment: Mapping[str, str]) -> str:
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise MissingToolError(f"JAVA_HOME is {home}, but {java} does not exist: {_INSTALL}")
        return str(java)
    found = shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise MissingToolError(f"no java found: {_INSTALL}")
    return found
