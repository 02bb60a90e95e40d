"""Rules on Keras models that exist."""
