"""`zkrebalancer security`, as far as it needs no server."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from zkrebalancer.cli.security import security
from zkrebalancer.operations import secure_tree
from zkrebalancer.operations.secure_tree import Outcome
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.rights import Principals

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


@pytest.mark.parametrize(("unreadable", "exit_code"), [([], 0), (["/consumers/groups/g"], 1)])
def test_what_may_not_be_read_is_not_secured(
    monkeypatch: pytest.MonkeyPatch, unreadable: list[str], exit_code: int
) -> None:
    """In `check`, look at the findings only."""
    monkeypatch.setattr("zkrebalancer.cli.security.BlockingZk", mock.MagicMock())
    monkeypatch.setattr(secure_tree, "read_principals", lambda _: (Principals(("sasl:c",)), 0))
    outcome = Outcome(nodes=2, unreadable=unreadable)
    monkeypatch.setattr(secure_tree, "walk", lambda *_, **_options: outcome)
    assert CliRunner().invoke(security, ["check", *PLACE]).exit_code == exit_code


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_dry_run_writes_nothing(monkeypatch: pytest.MonkeyPatch, is_dry: bool) -> None:
    """In `init`, store the principals, or repair rights, all the same."""
    written, repaired = list[object](), list[bool]()
    monkeypatch.setattr("zkrebalancer.cli.security.BlockingZk", mock.MagicMock())
    monkeypatch.setattr("zkrebalancer.cli.security._identity", lambda: "sasl:c")
    monkeypatch.setattr(secure_tree, "read_principals", lambda _: (Principals(("sasl:c",)), 7))
    monkeypatch.setattr(secure_tree, "write_principals", lambda _zk, who, version: written.append((who, version)))

    def walk(*_: object, repair: bool, **_options: object) -> Outcome:
        repaired.append(repair)
        return Outcome()

    monkeypatch.setattr(secure_tree, "walk", walk)
    result = CliRunner().invoke(security, ["init", *PLACE, *(["--dry-run"] if is_dry else [])])
    assert result.exit_code == 0, result.output
    assert (written, repaired) == (([], [False]) if is_dry else ([(Principals(("sasl:c",)), 7)], [True]))
