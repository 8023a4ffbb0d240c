"""The consistent region of a group: checkpoints, merges and resets, as pure decisions of its members and its leader."""
