"""One file or folder per kind of array. `_dispatch` finds them; they hand arrays to kernels."""
