"""Code that is read by its jaxpr: what each primitive means in ops."""
