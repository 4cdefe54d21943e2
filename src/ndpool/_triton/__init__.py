"""GPU pooling in Triton: finished windows and memory in, memory out; no argument checks.

`memory` decides from shapes and strides how threads walk an array, `forward` and `backward` which kernel
serves a plan (`planes` where windows are whole planes, `cells` where inputs share theirs), `parts` which
windows are taken in several passes; `kernels` holds the kernels. Called by `frameworks/_torch_gpu.py` and its
quick way alone.
"""
