"""The shell around the pure core: one gevent process that performs what `zkrebalancer.rebalance` decides."""
