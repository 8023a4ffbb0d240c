"""Group tests of other projects' clients, run against the gateway: `make conformance`."""
