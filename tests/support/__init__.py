"""What works with what: each transform of each backend, on each kind of rule, really run."""
