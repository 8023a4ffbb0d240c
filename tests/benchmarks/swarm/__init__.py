"""Many members of many groups, played on a real ZooKeeper by few processes and sessions."""
