"""`xg.audit`: what every custom gradient must keep, on anybody's code, converted or not."""
