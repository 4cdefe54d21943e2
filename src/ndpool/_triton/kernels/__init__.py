"""The kernels, one file per access pattern; `forward` and `backward` choose among them."""
