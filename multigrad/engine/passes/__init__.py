"""Passes over graphs of all kinds: as documents, verified, of turns of scans."""
