"""Random programs from the op table, and the float64 interpreter that knows what rounding may do to
them.
"""
