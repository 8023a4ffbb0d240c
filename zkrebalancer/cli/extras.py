"""What is installed only by those who need it: said in one line where it is missing."""

from __future__ import annotations

from importlib.util import find_spec

from zkrebalancer.protocol.errors import ConfigurationError

_SPARK = ("pyspark", "pandas", "psutil", "pyarrow")
_LIBRARIES = {"spark": _SPARK, "experiments": (*_SPARK, "matplotlib")}  # as in setup.py


def require(extra: str) -> None:
    """Refuse to go on without the libraries of an extra.

    Raises:
        ConfigurationError: naming the first one that is missing and what installs it.

    """
    for library in _LIBRARIES[extra]:
        if find_spec(library) is None:
            raise ConfigurationError(f'{library} is not installed: pip install "zkrebalancer[{extra}]"')
