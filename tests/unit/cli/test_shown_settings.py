"""Settings of a group in tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from tests.support.world import GROUP
from tests.unit.cli.test_group_commands import Commands, commands

__all__ = ["commands"]


def test_settings_are_shown_as_they_are_set_and_times_as_people_read_them(commands: Commands) -> None:
    """In `state_table` and `Change.show`, show the values of Python: `()`, None, False, 1763000000000."""
    shown = commands.run("freeze", GROUP, "--for", "30d").stdout
    until_ms = commands.json("describe", GROUP)["settings"]["frozen_until_ms"]
    until = datetime.fromtimestamp(until_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    assert shown.splitlines()[-1] == f"g is frozen until {until}"
    assert f"{until_ms} ({until})" in shown
    cells = dict(_cells(commands.run("describe", GROUP, "--state").stdout))
    assert cells["frozen_until_ms"] == f"{until_ms} ({until})"
    assert (cells["frozen"], cells["approve_moves_above"], cells["drained_hosts"]) == ("true", "-", "-")
    assert (cells["approved_moves"], cells["strategy"]) == ("0", "sticky")


def _cells(table: str) -> Iterator[tuple[str, str]]:
    for line in table.splitlines():
        if line.startswith("│"):
            key, value = line.strip("│").split("│")
            yield key.strip(), value.strip()
