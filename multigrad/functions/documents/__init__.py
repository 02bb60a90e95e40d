"""Rules and graphs as plain data."""
