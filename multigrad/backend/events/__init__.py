"""What happens in the core that compilers must hear of, and who of them hears it."""
