"""The IR as data: types, ops, nodes and graphs, the values of constant arrays."""
