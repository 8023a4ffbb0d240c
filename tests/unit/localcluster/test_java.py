"""Finding Java, and the error if it is missing or too old."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkrebalancer.localcluster.errors import MissingToolError
from zkrebalancer.localcluster.java import find_java, parse_version


def fake_java(home: Path, prints: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{prints}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "24-ea" 2025-03-18', 24),
        ("command not understood", None),
    ],
)
def test_versions_in_every_format(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_java_home_takes_precedence_over_the_path(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    fake_java(tmp_path / "other", 'openjdk version "17.0.1"')
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")}) == str(java)


def test_the_error_for_an_old_java_says_what_to_install(tmp_path: Path) -> None:
    java = fake_java(tmp_path, 'openjdk version "11.0.2"')
    with pytest.raises(MissingToolError, match=f"{java} is Java 11: install a JDK 17 or newer"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_the_error_names_a_java_home_without_java(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match=r"JAVA_HOME is .*does not exist: install a JDK 17"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_the_error_without_java_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="no java found: install a JDK 17"):
        find_java({"PATH": str(tmp_path)})


def test_a_java_that_fails_is_an_error(tmp_path: Path) -> None:
    java = fake_java(tmp_path, "")
    java.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(MissingToolError, match="-version failed"):
        find_java({"JAVA_HOME": str(tmp_path)})
