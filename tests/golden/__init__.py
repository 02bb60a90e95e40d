"""Golden texts: what every captured name of each dialect becomes, and every emitted source.

A change that should change no graph is shown to change none: `python -m tests.golden write A` on
the commit before, `python -m tests.golden write B` on that after it, `git diff --no-index A B`.
`python -m tests.golden update` writes the digests beside this file, by which the tests tell.
"""
