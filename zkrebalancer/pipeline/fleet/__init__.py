"""`pipeline fleet`: what the rebalances of all groups cost over weeks, why, and which settings would have cost less."""
