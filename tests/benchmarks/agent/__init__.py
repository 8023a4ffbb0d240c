"""How quick the agent is beside the raw clients, and what agents cost that have nothing to do."""
