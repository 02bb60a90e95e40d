"""The names of TensorFlow's dialect, by family."""
