"""TensorFlow's dialect: what a call of the library means in ops, while foreign code is captured."""
