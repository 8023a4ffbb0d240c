"""skewed-load-weights: skewed-load, with weights that describe the load to the group from the beginning."""

from __future__ import annotations

from dataclasses import replace

from zkrebalancer.experiments.scenarios import skewed_load

SCENARIO = replace(
    skewed_load.SCENARIO,
    name="skewed-load-weights",
    about="skewed-load, and the group has weights that describe the load, as if learned from earlier hours",
    has_weights=True,
)
