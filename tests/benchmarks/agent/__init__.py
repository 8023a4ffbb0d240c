"""Speed of the agent beside the raw clients, and the cost of idle agents."""
