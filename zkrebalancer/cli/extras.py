"""Libraries that only some commands need; a missing one is a one-line error."""

from __future__ import annotations

from importlib.util import find_spec

from zkrebalancer.protocol.errors import ConfigurationError

_SPARK = ("pyspark", "pandas", "psutil", "pyarrow")
_LIBRARIES = {"spark": _SPARK, "experiments": (*_SPARK, "matplotlib")}  # as in setup.py


def require(extra: str) -> None:
    """Require the libraries of an extra.

    Raises:
        ConfigurationError: one is missing; the text says how to install it.

    """
    for library in _LIBRARIES[extra]:
        if find_spec(library) is None:
            raise ConfigurationError(f'{library} is not installed: pip install "zkrebalancer[{extra}]"')
