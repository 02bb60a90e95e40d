"""The core: what a rule needs from its text to a gradient in each framework. It stands alone.

Read `docs/start_here.md` first. It imports neither `engine` nor any feature; what these
provide they register (`support/lazy_modules.py`).
"""
