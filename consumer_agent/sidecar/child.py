"""The application's process: gets bytes on its standard input, writes frames to its standard output.

The child leads its own process group. Ctrl-C in a terminal therefore reaches only the agent, which lets the child
finish; and the child's own processes are killed with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from consumer_agent.errors import ConsumerError
from consumer_agent.sidecar.frames import Codec, Frame
from zkrebalancer.protocol.errors import ConfigurationError

CHUNK_BYTES = 1 << 16
MAX_CHUNKS = 16  # read or written in one exchange
LOOK_INTERVAL_S = 0.1  # between two checks whether to wait any longer
END_GRACE_S = 1.0  # in which a child should end after closing its input or output
REAP_LIMIT_S = 0.5  # in which killed processes should be reaped
REAP_PAUSE_S = 0.01


class ChildEndedError(ConsumerError):
    """The child has ended, or closed its input or output; the text says which."""


def command_line(text: str) -> list[str]:
    """Split a command as a shell would, though no shell runs it.

    Raises:
        ConfigurationError: there is no such program, or quotes are not closed.

    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigurationError(f"{text!r:.200} cannot be split into words: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise ConfigurationError(f"{text!r:.200}: there is no program {words[0] if words else ''!r:.80}")
    return words


class Child:
    """A running child. Used by one thread."""

    def __init__(self, words: list[str], codec: Codec) -> None:
        """Start the child.

        Raises:
            ChildEndedError: it cannot be started.

        """
        try:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        except OSError as error:
            raise ChildEndedError(f"{words[0]:.200} cannot be started: {error.strerror}") from None
        self._process = process
        self.codec = codec
        self._out = deque[memoryview]()  # bounded by what a child may be given; slices of a view copy nothing
        pipes: Any = process  # typeshed says that they may be None, but Popen has opened them here
        self._stdin, self._stdout = pipes.stdin, pipes.stdout
        try:
            self._input: int = self._stdin.fileno()
            self._output: int = self._stdout.fileno()
            os.set_blocking(self._input, False)
            os.set_blocking(self._output, False)
            self._poll = select.poll()
            self._poll.register(self._output, select.POLLIN)
            self._poll.register(self._input, 0)  # reports when the child has closed it
        except BaseException:  # else nobody would know of it
            self.kill()
            raise

    def send(self, data: bytes) -> None:
        """Queue bytes for the child's input."""
        if data:
            self._out.append(memoryview(data))

    def exchange(self, timeout_s: float) -> Iterator[Frame]:
        """Write what the child accepts and yield its frames; wait at most `timeout_s` seconds for either.

        Errors are raised after all frames before them were yielded.

        Raises:
            ChildEndedError: the child has ended, or closed its input or output.
            FrameError: the child wrote something that is not a frame.

        """
        self._write()
        events = dict(self._poll.poll(timeout_s * 1_000))
        self._write()
        is_deaf = bool(events.get(self._input, 0) & select.POLLERR)
        has_ended = self._process.poll() is not None  # asked before reading, or the last output would be missed
        data, is_over = self._read()
        yield from self.codec.feed(data)
        if not data and (is_deaf or is_over or has_ended):
            raise ChildEndedError(self._how_it_ended("input" if is_deaf else "output"))

    def end(self, is_over: Callable[[], bool]) -> None:
        """Close the child's input, wait for its end or `is_over`, then kill it. Ignores further output."""
        if self._stdin.closed:  # it was killed
            return
        self._poll.unregister(self._input)
        self._stdin.close()
        has_closed = False
        while not is_over() and self._process.poll() is None:
            if has_closed:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(LOOK_INTERVAL_S)
            else:
                self._poll.poll(LOOK_INTERVAL_S * 1_000)
                has_closed = self._read()[1]
        self.kill()

    def kill(self) -> None:
        """Kill the child with all processes that it started, which may outlive it. Once it was killed, do nothing.

        Raises:
            ConsumerError: they are another user's. Their pipes are closed, which many programs end at.

        """
        if self._stdout.closed:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._reap()
            self._wait_for_rest()
        except ProcessLookupError:  # all have ended
            pass
        except PermissionError:
            self._close()
            text = "it may work on beside the next owner of its records; let the agent run as that user"
            raise ConsumerError(f"the child is another user's and may not be killed: {text}") from None
        self._reap()
        self._close()

    def _close(self) -> None:
        self._stdin.close()
        self._stdout.close()

    def _reap(self) -> None:
        """Wait for the end of the killed child.

        `Popen.wait` would wait for ever for a lock that a signal's exception within `Popen.poll` has left.
        """
        process = self._process
        if process.returncode is None:
            try:
                _pid, status = os.waitpid(process.pid, 0)
            except ChildProcessError:  # that exception came before its status was noted
                status = 0
            process.returncode = os.waitstatus_to_exitcode(status)

    def _wait_for_rest(self) -> None:
        """Wait until the rest of the group has ended, for at most REAP_LIMIT_S.

        A killed process hides another user's ones until it is reaped: by init, or by us as a container's first process.

        Raises:
            ProcessLookupError: all have ended.
            PermissionError: only another user's are left.

        """
        give_up_s = time.monotonic() + REAP_LIMIT_S
        while time.monotonic() < give_up_s:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-self._process.pid, os.WNOHANG)
            os.killpg(self._process.pid, 0)
            time.sleep(REAP_PAUSE_S)

    def _write(self) -> None:
        try:
            for _ in range(MAX_CHUNKS):
                if not self._out:
                    break
                first = self._out.popleft()
                written = os.write(self._input, first[:CHUNK_BYTES])
                if written < len(first):
                    self._out.appendleft(first[written:])
        except BlockingIOError:
            self._out.appendleft(first)
        except BrokenPipeError:
            self._out.clear()  # the child reads no more; first its last output is read
        self._poll.modify(self._input, select.POLLOUT if self._out else 0)

    def _read(self) -> tuple[bytes, bool]:
        """Return the output so far, and whether that is all."""
        chunks: list[bytes] = []
        try:
            for _ in range(MAX_CHUNKS):
                chunk = os.read(self._output, CHUNK_BYTES)
                if not chunk:
                    return b"".join(chunks), True
                chunks.append(chunk)
        except BlockingIOError:
            pass
        return b"".join(chunks), False

    def _how_it_ended(self, closed: str) -> str:
        try:
            status = self._process.wait(END_GRACE_S)
        except subprocess.TimeoutExpired:
            return f"the child closed its {closed}"
        if status < 0:
            return f"the child was killed by {_signal_name(-status)}"
        return f"the child ended with exit status {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
