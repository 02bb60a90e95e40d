"""The proof of code: a capture compared with what was written."""
