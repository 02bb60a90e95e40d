"""TensorFlow's rows: for each op of the table the function of TensorFlow that computes it."""
