"""Recording beyond plain code: assertions, scans, shards."""
