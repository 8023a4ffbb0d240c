"""The real coordinators and the real agents in one process, in virtual time, with faults; one seed is one run."""
