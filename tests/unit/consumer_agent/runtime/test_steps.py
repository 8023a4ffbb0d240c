"""The steps of the methods that wait, without a thread that performs them."""

from __future__ import annotations

from unittest import mock

import pytest

from consumer_agent.runtime import steps
from consumer_agent.runtime.notices import Notice, Tell


@pytest.mark.parametrize("tell", [Tell.ASSIGNED, Tell.REVOKE, Tell.LOST])
def test_a_callback_that_raises_is_over(tell: Tell) -> None:
    """In `run_notice`, report the end only of a callback that returns: a revoke would never be acknowledged."""
    frontend, notice = mock.Mock(in_callback=False), Notice(tell, {("t", 0)})
    generator = steps.run_notice(frontend, notice)
    step = next(generator)
    assert isinstance(step, steps.Callback)
    assert frontend.in_callback
    frontend.called_back.assert_not_called()
    with pytest.raises(ZeroDivisionError):
        generator.throw(ZeroDivisionError())
    frontend.called_back.assert_called_once_with(notice)
    assert not frontend.in_callback
