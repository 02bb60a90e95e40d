"""What each op of the table computes."""
