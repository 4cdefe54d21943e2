"""The kernels themselves, one way of walking memory a file; `launch` chooses among them."""
