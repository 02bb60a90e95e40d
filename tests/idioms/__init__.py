"""Classes of torch as people write them, one for each idiom; each must be converted unchanged."""
