"""What a rule of operators needs of this backend: kernels, attachment, compilers."""
