"""Commands that look at rules and Functions, and the parts that all commands share."""

STOPPED = 130  # what shells say of a program that Ctrl-C ended
