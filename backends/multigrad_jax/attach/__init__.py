"""Attachment beyond the daily job: code as written, guests, proofs."""
