"""Libraries that only some commands need; a missing one is a one-line error."""

from __future__ import annotations

from importlib.util import find_spec

from zkrebalancer.protocol.errors import ConfigurationError

_SPARK = ("pyspark", "pandas", "psutil", "pyarrow")
_TRACES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_LIBRARIES = {"spark": _SPARK, "experiments": (*_SPARK, "matplotlib"), "traces": _TRACES}  # as in setup.py


def require(extra: str) -> None:
    """Require the libraries of an extra.

    Raises:
        ConfigurationError: one is missing; the text says how to install it.

    """
    for library in _LIBRARIES[extra]:
        if not _is_there(library):
            raise ConfigurationError(f'{library} is not installed: pip install "zkrebalancer[{extra}]"')


def _is_there(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
