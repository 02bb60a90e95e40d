"""The rule IR as data: types, ops as objects, nodes and graphs, the values of constant arrays."""
