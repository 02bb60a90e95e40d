"""What is read besides arguments: the rule in force, what names mean, where draws come from."""
