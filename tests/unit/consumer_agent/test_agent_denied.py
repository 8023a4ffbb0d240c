"""ZooKeeper does not allow a consumer to write what is its own: the application is told which node it is."""

from __future__ import annotations

from consumer_agent.errors import AuthorizationError
from consumer_agent.machine import State
from consumer_agent.signals import BecameOut, CommitFinished, CommitRequested, Failed, Position, TellLost
from tests.unit.consumer_agent.agent_driver import T0, Driver, of_type, offset_path
from zkrebalancer.protocol.calls import Refusal, Refused


def test_a_commit_that_may_not_be_written_names_the_node() -> None:
    driver = Driver()
    driver.register()
    driver.own({T0: 10})
    driver.progress(driver.step(CommitRequested(7)), {T0: Position(15, 15)})
    effects = driver.answer_write(Refused(Refusal.NOT_ALLOWED, 1))
    (failed,) = of_type(effects, Failed)
    assert isinstance(failed.error, AuthorizationError)
    assert str(failed.error).endswith(f"to write {offset_path(T0)}")
    (finished,) = of_type(effects, CommitFinished)
    assert finished.error is not None
    assert offset_path(T0) in finished.error
    assert of_type(effects, TellLost)
    assert of_type(effects, BecameOut)
    assert driver.machine.state is State.OUT
