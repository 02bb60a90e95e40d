"""Functions whose forward, what it keeps, and backward run as one kernel each, in C or Triton."""
