"""Makes `format("consumer_group")` known to Spark, which looks for installed modules that are named like this one."""

import contextlib

with contextlib.suppress(ImportError):  # without the extra `spark` there is none; to fail would take Spark all others
    from zkrebalancer.pipeline.source import ConsumerGroupSource as DefaultSource

__all__ = ["DefaultSource"]
