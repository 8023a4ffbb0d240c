"""What is told of an error that Spark has wrapped."""

from __future__ import annotations

import pytest

from zkrebalancer.pipeline.session import first_line

WRAPPED = """[STREAM_FAILED] Query [id = 1] terminated with exception: Failed to plan: Traceback (most recent call):
  File "worker.py", line 1, in main
zkrebalancer.pipeline.topic.EventTopicError: t/0 is gone; begin anew
 SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\n[PATH_NOT_FOUND] no such path: x\n\tat org.apache.Frame", "[PATH_NOT_FOUND] no such path: x"),
        (WRAPPED, "t/0 is gone; begin anew"),
        ("", "ValueError"),
    ],
)
def test_one_line_is_told(text: str, told: str) -> None:
    assert first_line(ValueError(text)) == told
