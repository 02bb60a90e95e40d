"""What a rule costs, in time and in memory, against code written by hand.

`cases` says what is measured, `rivals/` holds the hand-written code, `runners/` run it, `measure`
takes the time. Frameworks are imported only when they are measured. `figures/` are benchmarks of
their own.
"""
