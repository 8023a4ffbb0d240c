from __future__ import annotations

from zkrebalancer.pipeline.schema import COMMON, NEEDED, REST


def test_every_required_key_is_a_column() -> None:
    """If a new kind of event in the plain checker had no columns here, no event file could be read."""
    assert {key for keys in NEEDED.values() for key in keys} <= {*COMMON.names, *REST.names}
