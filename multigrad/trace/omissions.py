"""What a graph leaves out of the code that it was captured from, by kind.

A capture notes each kind in `Trace.omissions`. Where one matters, the code itself runs;
`functions.calls.decision` says where that is.
"""

ASSERTIONS = "what it asserts of values"
AUTOCAST = "what it computes under autocast"
BRANCHES = "the one way of several that it takes"
FORWARD_MODE = "its own jvp, in forward mode"
ORDERS = "the derivative of its backward"
SPARSE = "what it does with a sparse gradient"
TWICE = "the tensor that it returns twice"
UNDIFFERENTIATED = "what it computes where nobody differentiates it"
# What code does besides returning, which a graph never does.
NOTES = "the attributes that it sets"
UPDATES = "the arguments that it updates in place"
# Why there is no graph.
MISSING = "another gradient where a cotangent is missing"
