"""What the commands do that look at rules and Functions, and what all commands share."""

STOPPED = 130  # what shells say of a program that Ctrl-C ended
