"""Files, extras, compiled C, and what is said of shards and of parts in series."""
