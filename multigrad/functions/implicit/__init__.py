"""Functions of solvers, whose gradient is that of the equation which they solve."""
