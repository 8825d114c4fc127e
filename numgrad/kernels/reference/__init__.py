"""Plain NumPy twins of the kernels: slow, obvious, and the tests' answer key."""
