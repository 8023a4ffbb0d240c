"""Starts Spark's Python workers with the installed PySpark, which is compiled, not with Spark's zip of its sources.

Spark puts that zip in front of all other modules; to import it takes half a second of processor time more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

ZIP = "pyspark.zip"


def without_zip(paths: Iterable[str]) -> list[str]:
    """Return where to look for modules."""
    return [path for path in paths if not path.endswith(ZIP)]


if __name__ == "__main__":
    sys.path[:] = without_zip(sys.path)
    from pyspark.daemon import manager

    manager()
