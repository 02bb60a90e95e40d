"""What a machine has: a user's directory of what is kept, and a compiler of C."""
