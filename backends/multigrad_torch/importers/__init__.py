"""Import of torch's custom gradients: autograd Functions and custom operators, unchanged."""
