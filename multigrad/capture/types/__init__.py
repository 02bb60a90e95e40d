"""Types come from the library: how it is asked, and what its answer makes of a node."""
