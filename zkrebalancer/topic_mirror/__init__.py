"""The topic mirror: writes `/brokers` in ZooKeeper for brokers in KRaft mode, which do not."""
