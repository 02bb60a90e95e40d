"""Calls across frameworks, and what backends' authors alone use."""
