"""Measures how many small changes of the code the tests notice: mutmut's operators, in forks of one process."""
