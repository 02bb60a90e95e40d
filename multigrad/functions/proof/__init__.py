"""The proof of a capture: the original runs once, on small inputs, and is compared with its graph
before that is used.

A graph is what capture believes a rule or a Function to be. Here the user's own code runs on real
tensors of the library that it is written in, forward and backward, and the graph runs by its ops'
meanings in float64; where they differ, the graph is never used. What the original does is undone
where it can be (`Backend.isolate`).
"""
