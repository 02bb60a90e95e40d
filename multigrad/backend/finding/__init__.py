"""How backends are found: what is installed, which owns a value; and what all rooms ask of any."""
