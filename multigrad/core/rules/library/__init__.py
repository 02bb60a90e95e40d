"""The rule library, one file per family; importing a file registers its rules, which
`rules/rule_names.py` lists.
"""
