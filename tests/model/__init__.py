"""The protocol's model (`docs/model/rebalance.pml`), searched by spin: `python -m tests.model`."""
