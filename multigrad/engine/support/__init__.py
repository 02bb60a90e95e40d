"""Files, compiled C, and what is said of shards."""
