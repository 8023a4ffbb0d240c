"""Runs of real processes, judged by their events: the demo, the experiments, and the lab that tests share with them."""
