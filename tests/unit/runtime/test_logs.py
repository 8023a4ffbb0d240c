"""What an application's log handler or filter raises does not reach those who log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from zkrebalancer.runtime import logs
from zkrebalancer.runtime.zk_connection import SessionLog

NAME = "zkrebalancer.test.logs"


class Raising(logging.Handler):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def emit(self, _record: logging.LogRecord) -> None:
        raise self.error


@contextmanager
def raising(error: BaseException, name: str = NAME) -> Iterator[None]:
    handler, log = Raising(error), logging.getLogger(name)
    former = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(former)


def test_a_handlers_error_is_shown_and_goes_no_further(capsys: pytest.CaptureFixture[str]) -> None:
    with raising(ValueError("the disk is gone")):
        logs.named(NAME).warning("a fault")
    assert "ValueError: the disk is gone" in capsys.readouterr().err


def test_a_filters_error_goes_no_further(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_record: logging.LogRecord) -> bool:
        raise LookupError("no context")

    log = logs.named(NAME)
    log.addFilter(refuse)
    try:
        log.warning("a fault")
    finally:
        log.removeFilter(refuse)
    assert "LookupError: no context" in capsys.readouterr().err


def test_an_interrupt_within_a_handler_is_raised() -> None:
    with raising(KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        logs.named(NAME).warning("a fault")


def test_a_record_names_the_place_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    logs.named(NAME).warning("a fault")
    (record,) = caplog.records
    assert record.filename == "test_logs.py"


@pytest.mark.parametrize("say", [lambda log: log.warning("dropped"), lambda log: log.log(logging.WARNING, "dropped")])
def test_a_handlers_error_does_not_end_kazoos_connection(say: Callable[[logging.Logger], None]) -> None:
    log = SessionLog("kazoo")
    log.when_tls_failed = lambda _: None
    with raising(ValueError("the disk is gone"), "zkrebalancer.runtime.zk"):
        say(log)


def test_the_applications_logger_may_be_passed_to_kafkas_client(capsys: pytest.CaptureFixture[str]) -> None:
    with raising(ValueError("the disk is gone")):
        logs.SafeLog(logging.getLogger(NAME)).log(logging.WARNING, "%s is down", "broker 1")
    assert "ValueError: the disk is gone" in capsys.readouterr().err


def test_a_name_cannot_pass_for_an_entry_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """In `LinesFormatter`, write a message as it is: groups of other programs may have any name."""
    handler = logs.to_stderr()
    handler.handle(
        logging.LogRecord(NAME, logging.INFO, "", 0, "group %s", ("\x1b[2Jx\n2026-01-01 ERROR y\rz\n",), None)
    )
    first, *more = capsys.readouterr().err.splitlines()
    assert first.endswith(" INFO group ?[2Jx")
    assert more == ["  2026-01-01 ERROR y", "  z"]


def test_neither_can_a_name_in_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """In `LinesFormatter`, override `formatMessage` instead: what an error says is not in it."""
    error = ValueError("no \x1b[2Jx\n2026-01-01 ERROR y")
    handler = logs.to_stderr()
    handler.handle(
        logging.LogRecord(NAME, logging.ERROR, "", 0, "a fault", None, (ValueError, error, error.__traceback__))
    )
    assert capsys.readouterr().err.splitlines()[1:] == ["  ValueError: no ?[2Jx", "  2026-01-01 ERROR y"]
