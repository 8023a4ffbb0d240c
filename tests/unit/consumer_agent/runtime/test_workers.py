"""Handlers in threads, and the commits of records that they have finished."""

from __future__ import annotations

from typing import Any

import pytest

from consumer_agent import Batch, Consumer, ConsumerStateError
from tests.unit.consumer_agent.runtime.interrupts import Setting


class KeepingSetting(Setting):
    """A consumer that commits nothing by itself."""

    def made(self, **settings: Any) -> Consumer:
        return Consumer(**settings, enable_auto_commit=False)


@pytest.mark.parametrize(("kind", "lines"), [(KeepingSetting, 1), (Setting, 0)])
def test_run_says_if_nothing_stores_what_handlers_finish(
    kind: type[Setting], lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As it was: a commit in a handler was refused with the words that its batch is stored anyway."""
    setting = kind()

    def handle(_batch: Batch) -> None:
        setting.consumer.commit()

    with pytest.raises(ConsumerStateError, match="and stored by automatic commits, or with its partition"):
        setting.consumer.run(handle)
    assert len(caplog.messages) == lines
