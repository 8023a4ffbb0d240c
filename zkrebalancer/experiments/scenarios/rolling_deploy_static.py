"""rolling-deploy-static: rolling-deploy with static members, which keep their partitions while they are away."""

from __future__ import annotations

from dataclasses import replace

from zkrebalancer.experiments.scenarios import rolling_deploy

SCENARIO = replace(
    rolling_deploy.SCENARIO,
    name="rolling-deploy-static",
    about="rolling-deploy with static members, which keep their partitions while they are away",
    is_static=True,
)
