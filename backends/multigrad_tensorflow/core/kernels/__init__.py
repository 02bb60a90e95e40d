"""TensorFlow's kernels: for each op the function of TensorFlow that computes it."""
