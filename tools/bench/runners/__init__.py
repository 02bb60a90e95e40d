"""How each framework runs forward and backward of a rival."""
