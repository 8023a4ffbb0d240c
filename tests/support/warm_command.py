"""`python -m tests.support.warm_demo demo …`: the demo with forks as its processes (`warm.py`), which do the same.

How they begin and end as new interpreters, interrupted demos show.
"""

from __future__ import annotations

from tests.support.warm import WarmPrograms, ending_starter
from zkrebalancer.cli.main import main
from zkrebalancer.experiments import demo

if __name__ == "__main__":
    demo.LocalCluster = WarmPrograms  # type: ignore[attr-defined]  # the name by which it makes its cluster
    with ending_starter():
        main()
