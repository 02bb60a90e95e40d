"""TensorFlow's functions in ops, by family."""
