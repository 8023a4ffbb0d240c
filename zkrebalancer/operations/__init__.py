"""Operations on a group from outside, through ZooKeeper; the coordinator need not be running."""
