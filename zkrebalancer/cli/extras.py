"""What is installed only by those who need it: said in one line where it is missing."""

from __future__ import annotations

from importlib.util import find_spec

from zkrebalancer.protocol.errors import ConfigurationError


def require(extra: str, *libraries: str) -> None:
    """Refuse to go on without these libraries.

    Raises:
        ConfigurationError: naming the first one that is missing and what installs it.

    """
    for library in libraries:
        if find_spec(library) is None:
            raise ConfigurationError(f'{library} is not installed: pip install "zkrebalancer[{extra}]"')
