"""Linear algebra under the names that libraries give it."""
