"""Who has paused a group's starts."""

from __future__ import annotations

from zkrebalancer.protocol.settings import is_paused_by, paused


def test_a_group_without_settings_is_paused_by_nobody() -> None:
    """In `is_paused_by`, read content that is not there."""
    assert not is_paused_by(b"", "reset-")
    assert is_paused_by(paused(b"", "reset-1"), "reset-")
    assert not is_paused_by(paused(b"", "restore-1"), "reset-")
