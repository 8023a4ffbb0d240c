from __future__ import annotations

from zkrebalancer.pipeline.schema import EVENT, NEEDED


def test_every_key_that_a_judgement_needs_is_a_column() -> None:
    """A new kind of event in the plain checker is one here, or no event file could be read."""
    assert {key for keys in NEEDED.values() for key in keys} <= set(EVENT.names)
