"""`zkrebalancer security`, as far as it needs no server."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from zkrebalancer.cli.security import security
from zkrebalancer.protocol.errors import ConfigurationError

PLACE = ["--zookeeper", "nowhere:1"]


@pytest.mark.parametrize(
    ("auth", "name"), [("sasl", "sasl:super"), ("digest", "digest:super:xQJmxLMiHGwaqBvst5y6rkB6HQs=")]
)
def test_the_name_of_a_login(tmp_path: Path, auth: str, name: str) -> None:
    word = tmp_path / "word"
    word.write_text("admin")
    login = ["--zookeeper-user", "super", "--zookeeper-password-file", str(word), "--zookeeper-auth", auth]
    result = CliRunner().invoke(security, ["identity", *PLACE, *login])
    assert result.stdout == f"{name}\n"


def test_without_a_login_nothing_can_be_secured() -> None:
    result = CliRunner().invoke(security, ["init", *PLACE])
    assert isinstance(result.exception, ConfigurationError)
    assert "a login is needed" in str(result.exception)


def test_a_group_needs_a_name_and_a_principal() -> None:
    result = CliRunner().invoke(security, ["init", *PLACE, "--group", "payments"])
    assert result.exit_code == 2
    assert "GROUP=SCHEME:NAME" in result.output
