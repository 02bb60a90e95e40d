"""What stands for a tensor while code is captured, and what it answers."""
