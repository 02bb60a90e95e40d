"""What writes pages of `docs/`, and sources, from what they describe; not a part of the wheel."""
