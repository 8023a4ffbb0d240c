"""Real servers on this machine for the demo, tests and experiments: ZooKeeper, Apache Kafka, and faults for both.

`cluster.LocalCluster` starts and ends them; `faults` breaks them on purpose; `mirror` writes `/brokers` where Kafka's
brokers do not use ZooKeeper.
"""
