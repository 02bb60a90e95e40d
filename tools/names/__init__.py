"""Which names of the libraries' tables real programs use: recorded while they run, and counted."""
