"""How backends are found: what is installed, what it offers, which one owns a value."""
