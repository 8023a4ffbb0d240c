"""The pages that a coordinator serves to people: groups, owners over time, rebalances, plans. They only read.

Nothing here may delay the coordinator's loop: groups are counted in slices, documents are made in threads from shallow
copies, plans in a process of their own. The browser gets data only; `static/` has the program that shows them.
"""
