"""A process that answers one request after another by pipes, for work that would make the coordinator's loop wait.

A frame is a length in four bytes, then msgpack. `AskedProcess` is the coordinator's side, `answer_all` the process's.
"""

from __future__ import annotations

import signal
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

import gevent
import msgpack
from gevent import subprocess

LENGTH = struct.Struct(">I")  # before each frame
END_LIMIT_S = 2.0  # how long a process may take to close what it has open


class ProcessFailedError(Exception):
    """There is no answer; the text says why."""


class AskedProcess:
    """One process, begun when it is asked first, and again after it has failed. Use it on one gevent hub."""

    def __init__(self, module: str) -> None:
        """`module` is run with `python -m`; it calls `answer_all`."""
        self._command: tuple[str, ...] = (sys.executable, "-m", module)
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Return the answer to a request; blocks this greenlet only. One request at a time.

        Raises:
            ProcessFailedError: no answer in time, or the process has ended; the next request begins another one.

        """
        try:
            with gevent.Timeout(limit_s):
                return self._ask(request)
        except gevent.Timeout:
            self._kill()
            raise ProcessFailedError(f"not read within {limit_s:g} s") from None
        except (OSError, EOFError):
            self._kill()
            raise ProcessFailedError("the process that reads them has ended") from None
        except (ValueError, msgpack.UnpackException) as error:
            self._kill()
            raise ProcessFailedError(f"the process that reads them has answered something else ({error})") from None

    def end(self) -> None:
        """End the process: it ends by itself at the end of its input, and is killed if that takes too long."""
        process = self._process
        if process is not None:
            requests, _answers = _pipes(process)
            with suppress(OSError), gevent.Timeout(END_LIMIT_S, TimeoutError()):
                requests.close()
                process.wait()
        self._kill()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in _pipes(process):
                with suppress(OSError):  # it may have ended before a request was written, which closing tries again
                    pipe.close()

    def begin(self) -> subprocess.Popen[bytes]:
        """Return the process; begin it if there is none."""
        if self._process is None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._process

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        content = msgpack.packb(request)
        requests, answers = _pipes(self.begin())
        requests.write(LENGTH.pack(len(content)) + content)
        requests.flush()
        (size,) = LENGTH.unpack(_read(answers, LENGTH.size))
        answer: dict[str, Any] = msgpack.unpackb(_read(answers, size))
        return answer


def answer_all(answer: Callable[..., Mapping[str, Any]]) -> None:
    """Answer requests on the standard input until it ends, each by a call with the request's keys."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # meant for the coordinator, which then ends this process
        signal.signal(ending, signal.SIG_IGN)
    wait = gevent.get_hub().threadpool.apply  # the hub keeps the session alive meanwhile
    while (request := wait(_read_request)) is not None:
        content = msgpack.packb(answer(**request))
        sys.stdout.buffer.write(LENGTH.pack(len(content)) + content)
        sys.stdout.buffer.flush()


def _read_request() -> dict[str, Any] | None:
    """Return the next request, None at the end of the input."""
    length = sys.stdin.buffer.read(LENGTH.size)
    if len(length) < LENGTH.size:
        return None
    request: dict[str, Any] = msgpack.unpackb(sys.stdin.buffer.read(LENGTH.unpack(length)[0]))
    return request


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise AssertionError("both are asked for")
    return process.stdin, process.stdout


def _read(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content
