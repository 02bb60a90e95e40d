"""The core: what a rule needs from its text to a gradient in each framework. It stands alone.

Read `docs/start_here.md` first. It imports nothing of `engine` and of the features beside that;
what these provide they register (`support/provided.py`).
"""
