"""Finding a mirror of Maven Central in Maven settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkrebalancer.localcluster.maven import ivy_settings, mirror_of_central

NAMESPACE = 'xmlns="http://maven.apache.org/SETTINGS/1.0.0"'


def settings(folder: Path, *mirrors: tuple[str, str], namespace: str = "") -> Path:
    entries = "".join(f"<mirror><mirrorOf>{of}</mirrorOf><url>{url}</url></mirror>" for of, url in mirrors)
    file = folder / "settings.xml"
    file.write_text(f"<settings {namespace}><mirrors>{entries}</mirrors></settings>")
    return file


@pytest.mark.parametrize("namespace", ["", NAMESPACE])
@pytest.mark.parametrize("mirrored", ["central", "*", "external:*", "other, central"])
def test_a_mirror_of_central_is_found(tmp_path: Path, mirrored: str, namespace: str) -> None:
    assert mirror_of_central(settings(tmp_path, (mirrored, " u "), namespace=namespace)) == "u"


@pytest.mark.parametrize("mirrored", ["other", "*,!central", "external:http:*", ""])
def test_a_mirror_of_another_repository_is_ignored(tmp_path: Path, mirrored: str) -> None:
    assert mirror_of_central(settings(tmp_path, (mirrored, "u"))) is None


def test_the_first_mirror_takes_precedence(tmp_path: Path) -> None:
    assert mirror_of_central(settings(tmp_path, ("other", "x"), ("*", "y"), ("central", "z"))) == "y"


def test_missing_or_invalid_settings_mean_no_mirror(tmp_path: Path) -> None:
    assert mirror_of_central(tmp_path / "missing.xml") is None
    (tmp_path / "settings.xml").write_text("<settings>")
    assert mirror_of_central(tmp_path / "settings.xml") is None


def test_the_url_is_escaped() -> None:
    assert 'root="file:/a?b&amp;c"' in ivy_settings("file:/a?b&c")
