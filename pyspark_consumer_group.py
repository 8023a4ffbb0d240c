"""Makes `format("consumer_group")` known to Spark, which looks for installed modules that are named like this one."""

import contextlib

with contextlib.suppress(ImportError):  # without the extra `spark`; an error would hide all other sources from Spark
    from zkrebalancer.pipeline.source import ConsumerGroupSource as DefaultSource

__all__ = ["DefaultSource"]
