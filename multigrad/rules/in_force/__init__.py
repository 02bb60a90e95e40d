"""What acts by the rule in force: activations, gradients of params, compiled steps, `vjp`."""
