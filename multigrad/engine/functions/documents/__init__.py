"""Documents: rules and graphs as plain data."""
