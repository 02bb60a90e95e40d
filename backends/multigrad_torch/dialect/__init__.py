"""What a call of torch means in ops, while foreign code is captured: torch's dialect."""
