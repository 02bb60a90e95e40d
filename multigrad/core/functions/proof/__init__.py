"""The proof of a capture: the original runs on small inputs and is compared with its graph.

A graph is what capture believes a rule or a Function to be; it is used only if the two agree. The
user's own code runs once, on real tensors of the library that it is written in, forward and
backward, and the graph runs by its ops' meanings in float64. What the original does is undone where
it can be (`Backend.isolate`).

    functions.py, rules.py ─► attempt.py ─► proof.py ─► outcomes.py ─► verdicts.py
                                               │             └─ compare.py, rounding.py, meanings.py
                                               └─ samples.py, run.py, executions.py
"""
