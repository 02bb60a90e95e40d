"""What is done with graphs as data: simplified, cut, verified, bounded, written and read."""
