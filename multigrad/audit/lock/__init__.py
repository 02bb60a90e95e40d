"""The lock: what a rule, a Function and the frameworks' own functions give, written down, and held
against what they give later.
"""
