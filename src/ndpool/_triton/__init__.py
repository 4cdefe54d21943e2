"""GPU pooling in Triton: plans and memory in, memory out; no argument checks.

`memory` describes arrays by merged axes and strides. `forward` and `backward` choose a kernel for a plan and
a layout; `strip`, `segments` and `planes` prepare those of the forward pass, `gathers`, `regions`, `column`,
`scan` and `walk` those of the backward pass. `unpool` scatters values to their indices, `decompose` splits
large windows into several passes, `launch` holds what launchers share, `driver` starts compiled kernels,
`tuning` holds the constants, and `kernels` the kernels. Only the CUDA part of the PyTorch framework calls
this package.
"""
