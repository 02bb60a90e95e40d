"""What acts by the rule in force: activations, gradients of params, compiled steps, `vjp`.

May import the rooms up to `context`; docs/architecture.md has their order.
"""
