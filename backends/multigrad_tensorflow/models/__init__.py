"""Rules on models and functions of TensorFlow that exist."""
