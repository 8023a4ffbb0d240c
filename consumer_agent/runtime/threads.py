"""Threads and locks of the operating system, even where gevent has patched `threading`, and a condition to wait on.

With such threads, the machine thread and the fetcher neither block the application nor are blocked by it. While a
greenlet waits, other greenlets of its thread run.
"""

from __future__ import annotations

import _thread
import inspect
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import CodeType, FrameType
from typing import Any, Protocol

LOOP_DESCRIPTORS = 8  # for an event loop, whose C code hangs if there are none


def in_own_thread() -> bool:
    """Whether this is a thread of ours, of any consumer: the garbage collector and a log's handlers run in any thread.

    It must not wait for another consumer: its own one would lose its lease.
    """
    return get_ident() in _own


def require_descriptors() -> None:
    """Raise OSError if too few descriptors are left for an event loop of gevent."""
    with ExitStack() as opened:
        for _ in range(LOOP_DESCRIPTORS):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def _original(name: str) -> Any:  # noqa: ANN401  # of any type
    """Return a function of `_thread` as it was before gevent patched it.

    gevent itself is imported with the first poll: it takes as long to import as Kafka's client.
    """
    patching = sys.modules.get("gevent.monkey")
    return getattr(_thread, name) if patching is None else patching.get_original("_thread", name)


new_lock: Callable[[], threading.Lock] = _original("allocate_lock")
new_reentrant_lock: Callable[[], threading._RLock] = _original("RLock")
_start_new_thread: Callable[[Callable[[], None], tuple[()]], int] = _original("start_new_thread")
get_ident: Callable[[], int] = _original("get_ident")
_own: set[int] = set()  # idents of the threads that `Thread` has started
os.register_at_fork(after_in_child=_own.clear)  # the child has none of them, and gives their idents to its own threads


def within_signal_handler() -> bool:
    """Whether this thread is in a function that was set with `signal.signal`."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {code for code in map(_code_of, handlers) if code is not None}
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # its public name
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def _code_of(handler: object) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    handler = handler if hasattr(handler, "__code__") else getattr(handler, "__call__", handler)  # noqa: B004
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None


def while_in_use(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that calls this one as long as others use it: a thread that runs keeps what it refers to."""
    try:
        known = weakref.WeakMethod(function) if inspect.ismethod(function) else weakref.ref(function)
    except TypeError:  # an object that cannot be referred to in that way
        return function

    def call(*given: object) -> object:
        found = known()
        return None if found is None else found(*given)

    return call


class Condition:
    """A lock that is held only briefly, with waiters for a change of what it protects.

    Several conditions may share a lock. `listeners` are called on every change, with the lock held: they must not wait.
    """

    def __init__(self, lock: threading.Lock | threading._RLock) -> None:
        """Begin without waiters."""
        self.lock = lock  # acquired by `with`: an interrupt in a method of this class could leave it held
        self._waiting: list[Callable[[], object]] = []
        self.listeners: list[Callable[[], object]] = []
        self.changes = 0  # calls of `notify`; they show a waiter that it missed one

    @property
    def is_held(self) -> bool:
        """Whether this thread has the lock, which is reentrant: a signal's handler has interrupted it in a change."""
        is_owned: Callable[[], bool] | None = getattr(self.lock, "_is_owned", None)  # as `threading` asks
        return is_owned is not None and is_owned()

    def notify(self) -> None:
        """Wake all waiters; the lock must be held."""
        self.changes += 1
        waiting, self._waiting = self._waiting, []
        for wake in (*waiting, *self.listeners):
            wake()

    def notify_if_free(self) -> None:
        """Wake all waiters, unless a thread has the lock, perhaps this one in the middle of a change."""
        if not self.is_held and self.lock.acquire(blocking=False):
            try:
                self.notify()
            finally:
                self.lock.release()

    def wait(self, timeout_s: float | None = None) -> None:
        """Release the lock until `notify` or the timeout, then acquire it again.

        Not for the application's thread: if a signal's exception ends that, an error about the lock takes its place.
        """
        waiter: _Waiter = _GreenletWaiter() if _is_cooperative() else _ThreadWaiter()
        wake = waiter.wake
        self._waiting.append(wake)
        try:
            self.lock.release()
            waiter.wait(timeout_s)
        finally:
            self.lock.acquire()
            if wake in self._waiting:
                self._waiting.remove(wake)
            waiter.close()

    def wait_for_change(self, changes: int, timeout_s: float | None) -> None:
        """Wait until `notify` was called more often than `changes` times; the lock must not be held.

        For the application's thread: a signal's exception leaves the lock as it was.
        """
        waiter: _Waiter = _GreenletWaiter() if _is_cooperative() else _ThreadWaiter()
        wake = waiter.wake
        try:
            with self.lock:
                if self.changes == changes:
                    self._waiting.append(wake)
            if wake in self._waiting:
                waiter.wait(timeout_s)
        finally:
            with self.lock:
                if wake in self._waiting:
                    self._waiting.remove(wake)
            waiter.close()

    def wait_until(self, is_so: Callable[[], object], timeout_s: float) -> bool:
        """Wait until `is_so` holds, no longer than this; return whether it does. As `wait_for_change` otherwise.

        The thread that changes it calls `notify` afterwards.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            changes, left_s = self.changes, deadline_s - time.monotonic()
            if is_so():
                return True
            if left_s <= 0:
                return False
            self.wait_for_change(changes, left_s)


class Thread:
    """A thread of the operating system; the program ends without waiting for it."""

    def __init__(self, target: Callable[[], None], name: str, *, is_applications: bool = False) -> None:
        """Prepare; nothing runs before `start`. With `is_applications`, it is a greenlet where others are."""
        self._target = target
        self._name = name
        self._is_own = not is_applications
        self._is_patched = self._is_own and _is_patched()  # then a thread of `threading` would be a greenlet
        self._python_thread = None if self._is_patched else self._new_thread()
        self._ended = Condition(new_reentrant_lock())  # for signals' handlers
        self.ident: int | None = None  # while it runs
        self.is_alive = self.has_begun = False
        self._is_in_doubt = False  # whether an interrupt has come before or after the thread was started

    def start(self) -> None:
        """Start the thread. After an interrupt, call it again: it runs once; or `join`, then it begins no more."""
        if self.has_begun:
            return
        if self._is_in_doubt and not self._is_patched:
            self._python_thread = self._new_thread()
        self.is_alive, self._is_in_doubt, handled = True, True, sys.exc_info()[1]
        try:
            if self._python_thread is None:
                _start_new_thread(self._run, ())
            else:
                self._python_thread.start()
        except RuntimeError as error:
            interrupt = error.__context__
            if interrupt is None or interrupt is handled:
                self.is_alive = self._is_in_doubt = False
                raise
            raise interrupt from None  # a signal's: Python waits for the thread with a lock that it then releases twice
        self._is_in_doubt = False

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, but no longer than this."""
        with self._ended.lock:
            if self._is_in_doubt and not self.has_begun:
                self.is_alive = False
        is_at_its_end = self._ended.wait_until(lambda: not self.is_alive, timeout_s)
        thread = self._python_thread if self.has_begun else None  # else Python may not know that it has begun
        if is_at_its_end and thread is not None and thread.ident is not None:
            thread.join(timeout_s)

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name=self._name, daemon=True)

    def _run(self) -> None:
        ident = get_ident()
        with self._ended.lock:
            if self.has_begun or not self.is_alive:  # started twice, or joined before
                return
            self.ident, self.has_begun = ident, True
        if self._is_own:
            _own.add(ident)
        try:
            self._target()
        finally:
            if self._is_own:
                _own.discard(ident)
            del self._target  # it may refer to this object, and so keep clients open until a garbage collection
            with self._ended.lock:
                self.ident, self.is_alive = None, False
                self._ended.notify()


class _Waiter(Protocol):
    def wake(self) -> object: ...

    def wait(self, timeout_s: float | None) -> object: ...

    def close(self) -> None: ...


class _ThreadWaiter:
    def __init__(self) -> None:
        self._lock = new_lock()
        self._lock.acquire()
        self.wake = self._lock.release

    def wait(self, timeout_s: float | None) -> None:
        self._lock.acquire(timeout=-1 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX))

    def close(self) -> None:
        pass


class _GreenletWaiter:
    def __init__(self) -> None:
        from gevent.event import Event  # noqa: PLC0415
        from gevent.hub import get_hub  # noqa: PLC0415

        self._flag = Event()
        self._watcher = get_hub().loop.async_()
        self._watcher.start(self._flag.set)
        self.wake = self._watcher.send

    def wait(self, timeout_s: float | None) -> None:
        self._flag.wait(timeout_s)

    def close(self) -> None:
        self._watcher.stop()
        self._watcher.close()


def current_greenlet() -> object:
    """Return the greenlet that runs; each thread has at least one."""
    import greenlet  # noqa: PLC0415  # see `_original`

    return greenlet.getcurrent()


def _is_patched() -> bool:
    import gevent.monkey  # noqa: PLC0415  # see `_original`

    return gevent.monkey.is_module_patched("threading")


def _is_cooperative() -> bool:
    """Whether other greenlets of this thread expect to run while this one waits.

    With patched threads, that is so in each thread of the application. In our own ones a waiter would make an event
    loop that nobody destroys, so they wait for greenlets only if they have a loop already.
    """
    import gevent.hub  # noqa: PLC0415

    is_applications = get_ident() not in _own and _is_patched()
    return is_applications or isinstance(gevent.hub.getcurrent().parent, gevent.hub.Hub)


def pause(time_s: float) -> None:
    """Let this thread or greenlet sleep. The patched `time.sleep` would make an event loop in our own threads."""
    Condition(new_lock()).wait_for_change(0, time_s)
