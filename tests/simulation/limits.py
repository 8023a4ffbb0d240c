"""Lowers limits of the code, in every module that has a constant of that name, so that work takes several rounds."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from unittest import mock

PACKAGES = ("zkrebalancer.rebalance", "zkrebalancer.protocol", "consumer_agent")


@contextmanager
def set_to(limits: Mapping[str, int]) -> Iterator[None]:
    """Run with these values of the named constants."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(PACKAGES)]
    with ExitStack() as stack:
        for name, value in limits.items():
            holders = [module for module in modules if hasattr(module, name)]
            if not holders:
                raise AssertionError(f"no module has a limit {name}")
            for module in holders:
                stack.enter_context(mock.patch.object(module, name, value))
        yield
