"""Custom gradients of TensorFlow's, unchanged, as Functions."""
