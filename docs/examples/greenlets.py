"""Prints every record in a greenlet, beside another one, until Ctrl-C; PATCH=1 monkey-patches Python."""

import os

from gevent import monkey

if os.environ.get("PATCH") == "1":
    monkey.patch_all()

import signal

import gevent

from consumer_agent import Consumer


def consume() -> None:
    """Consume in a greenlet."""
    with Consumer(
        zookeeper=os.environ["ZOOKEEPER"], bootstrap=os.environ["BOOTSTRAP"], group=os.environ["GROUP"]
    ) as consumer:
        consumer.subscribe([os.environ["TOPIC"]])
        for batch in consumer:
            for record in batch:
                print(f"{record.topic}/{record.partition} {record.offset} {record.value!r}", flush=True)
            consumer.commit()


def tick() -> None:
    """Do something else meanwhile."""
    while True:
        gevent.sleep(0.05)
        print("tick", flush=True)


gevent.spawn(tick)
consuming = gevent.spawn(consume)
for number in (signal.SIGINT, signal.SIGTERM):  # an exception would come in any greenlet, which would print it
    gevent.signal_handler(number, consuming.kill)  # leaves the group
consuming.get()
