"""The commands of audits, locks and vectors, and how targets and their inputs are found."""
