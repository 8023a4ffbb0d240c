"""`python -m tests.support.warm_command demo …`, or `experiment …`: with forks as its processes (`warm.py`).

They do the same. How new interpreters begin and end, interrupted demos and experiments show. The servers of an
experiment start quickly, and its steps do not wait for a moment that a seed draws: only who measures needs these.
"""

from __future__ import annotations

from tests.support.warm import WarmPrograms, ending_starter
from zkrebalancer.cli.main import main
from zkrebalancer.experiments import plan, play
from zkrebalancer.experiments.demo import run as demo
from zkrebalancer.experiments.protocols import PHASE_S
from zkrebalancer.localcluster.programs import QUICK_START

SHORT_PHASE_S = dict.fromkeys(PHASE_S, 0.1)

if __name__ == "__main__":
    # The names by which they make their clusters, and know the pauses.
    demo.LocalCluster = plan.LocalCluster = WarmPrograms  # type: ignore[attr-defined]
    plan.IN_PRODUCTION = QUICK_START  # type: ignore[assignment, attr-defined]
    plan.PHASE_S = play.PHASE_S = SHORT_PHASE_S  # type: ignore[attr-defined]
    with ending_starter():
        main()
