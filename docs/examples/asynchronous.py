"""Prints every record in an event loop, beside another task, until Ctrl-C."""

import asyncio
import os
import signal
from contextlib import suppress

from consumer_agent import AsyncConsumer, TopicPartition


async def tell(assigned: list[TopicPartition]) -> None:
    """Print assigned partitions; runs in the event loop. A plain function works as well."""
    await asyncio.sleep(0)
    print(f"gets {assigned}", flush=True)


async def tick() -> None:
    """Do something else meanwhile."""
    while True:
        await asyncio.sleep(0.05)
        print("tick", flush=True)


async def main() -> None:
    """Consume."""
    ticking = asyncio.create_task(tick())
    consuming = asyncio.current_task()
    if consuming is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consuming.cancel)
    async with AsyncConsumer(
        zookeeper=os.environ["ZOOKEEPER"], bootstrap=os.environ["BOOTSTRAP"], group=os.environ["GROUP"]
    ) as consumer:
        consumer.subscribe([os.environ["TOPIC"]], on_assign=tell)
        async for batch in consumer:
            for record in batch:
                print(f"{record.topic}/{record.partition} {record.offset} {record.value!r}", flush=True)
            await consumer.commit()
    ticking.cancel()


with suppress(KeyboardInterrupt, asyncio.CancelledError):
    asyncio.run(main())
