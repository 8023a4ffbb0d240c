"""Real servers on this machine for the demo, tests and experiments: ZooKeeper, Apache Kafka, and faults for both.

`cluster.LocalCluster` starts and stops them, `hosts.HostCluster` does so on Docker hosts; `faults` injects faults.
"""
