"""What an operator does to a group from outside, through ZooKeeper, with the coordinator running or not."""
