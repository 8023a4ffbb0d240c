"""The steps of the methods that wait, without a thread that performs them."""

from __future__ import annotations

from contextvars import copy_context
from unittest import mock

import pytest

from consumer_agent import ConfigurationError, Consumer, ConsumerStateError
from consumer_agent.records import Batch
from consumer_agent.runtime import steps
from consumer_agent.runtime.notices import Notice, Tell
from consumer_agent.runtime.record_buffer import Run
from consumer_agent.runtime.workers import Workers
from tests.unit.consumer_agent.messages import messages


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


def test_while_a_callback_runs_only_that_may_commit() -> None:
    """The answer to its commit would go to that of another thread, and it would wait for it in vain."""
    with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"):
        consumer = Consumer(zookeeper="z:1", bootstrap="b:1", group="g")
        consumer.subscribe(["orders"])
        consumer.poll(0.0)
        frontend = consumer._frontend
        running = steps.run_notice(frontend, Notice(Tell.EVENT, set(), call=lambda: None))
        frontend.enter(running)
        context = copy_context()
        context.run(next, running)
        for call in (consumer.commit, consumer.committed, consumer.commit_async):
            with pytest.raises(ConsumerStateError, match="another call is under way"):
                call()
        context.run(consumer.commit_async)
        with pytest.raises(StopIteration):
            context.run(next, running)
        frontend.undo(running)
        consumer.close(0.1)


@pytest.mark.parametrize(("woken_at_s", "notified", "looks"), [(1.0, 0, 1), (0.7, 0, 2), (1.0, 1, 2)])
def test_a_poll_in_which_nothing_comes_does_not_look_again_at_its_end(
    woken_at_s: float, notified: int, looks: int
) -> None:
    """In `poll`, look after every wait, or not at its end: an idle application would look twice, or too late."""
    frontend = mock.Mock(is_closed=False, decoder=None)
    frontend.shared.changed = mock.Mock(lock=mock.MagicMock(), changes=0)
    frontend.config.max_poll_records = 500
    frontend.next.return_value = Batch()
    with mock.patch("consumer_agent.runtime.steps.time.monotonic", side_effect=[0.0, 0.5, woken_at_s, 1.0]):
        polling = steps.poll(frontend, 1.0, None)
        assert isinstance(next(polling), steps.Turn)
        assert isinstance(next(polling), steps.Wait)
        frontend.shared.changed.changes = notified
        with pytest.raises(StopIteration):
            next(polling)
    assert frontend.draw.call_count == frontend.next.call_count == looks


def test_a_close_that_is_dropped_between_two_steps_is_silent() -> None:
    """In `_leave`, end the consumer in a `finally`: an interrupt would print "generator ignored GeneratorExit"."""
    frontend = mock.Mock(in_callback=False)
    frontend.shared = mock.Mock(is_closed=False, has_notice=False, lock=mock.MagicMock())
    frontend.shared.next_notice.return_value = None
    frontend.shared.changed = mock.Mock(lock=mock.MagicMock(), changes=0)
    closing = steps.close(frontend, 1.0)
    assert isinstance(next(closing), steps.Wait)
    closing.close()
    frontend.end_leaving.assert_called_once_with()


def test_records_of_a_handler_that_has_not_run_are_not_finished() -> None:
    """A lambda hides that it calls a coroutine function."""

    async def handle() -> None: ...

    run = Run("t", 0, 1, messages(("t", 0), [5]))
    frontend = mock.Mock(decoder=None)
    frontend.shared.changed.lock = frontend.shared.lock = mock.MagicMock()
    workers = Workers(frontend, lambda _batch: handle(), 1, mock.Mock())
    workers._in_hand[0] = {("t", 0)}
    with (
        mock.patch.object(workers, "_wait_for_records", side_effect=[[run], []]),
        pytest.raises(ConfigurationError, match="handle may not be a coroutine function"),
    ):
        workers._work(0)
    frontend.shared.finish_below.assert_not_called()
