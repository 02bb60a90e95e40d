"""What all rooms need: locks that a fork finds free, trees, fixed mappings, ranges, old names."""
