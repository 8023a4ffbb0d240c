"""Where gevent has patched `threading`, our own threads make no event loops, which nobody would destroy."""

from __future__ import annotations

import subprocess
import sys

from tests.support.deadlines import WITHIN_S

PROGRAM = """
import gevent.monkey
gevent.monkey.patch_all()
import gc, os, weakref
from confluent_kafka import KafkaError, KafkaException
from consumer_agent.region.at_once import CallsAtOnce
from consumer_agent.region.kafka_sink import _repeat
from consumer_agent.runtime.threads import Condition, Thread, get_ident, new_lock

def wait():
    changed = Condition(new_lock())
    with changed.lock:
        changed.wait(0.001)

def repeat():
    left = [1]
    def step():
        if left:
            left.pop()
            raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
    _repeat(step)

gc.disable()
opened = []
for work in (wait, CallsAtOnce([repeat]).do):
    thread = Thread(work, "it")
    thread.start()
    thread.join(60)
    assert not thread.is_alive
    opened.append(len(os.listdir("/proc/self/fd")))
CallsAtOnce([repeat]).do()
opened.append(len(os.listdir("/proc/self/fd")))
ended = weakref.ref(thread)
del thread
idents = []
handling = Thread(lambda: idents.append(get_ident()), "it", is_applications=True)
handling.start()
handling.join(60)
print(len(set(opened)), ended(), idents == [get_ident()])
"""


def test_a_wait_and_a_pause_in_our_own_thread_leave_no_descriptors_and_handlers_run_in_greenlets() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=WITHIN_S
    )
    assert (done.stdout, done.stderr) == ("1 None True\n", "")
