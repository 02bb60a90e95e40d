"""Rules on existing Keras models."""
