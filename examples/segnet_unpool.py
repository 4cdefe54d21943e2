"""Pooling in SegNet: the encoder pools and keeps the indices, the decoder unpools with them in reverse order.

After unpooling, every maximum is back at its original position in the input, which gives such networks sharp
borders. `output_size` is needed because odd and even input sizes can pool to the same size.
"""

import numpy as np

from ndpool import nn

POOL = nn.MaxPool2d(2, return_indices=True)
UNPOOL = nn.MaxUnpool2d(2)


def main() -> None:
    """Pool three times, unpool three times, and check that every value is back at its position."""
    x = np.random.default_rng(0).random((1, 4, 45, 60), dtype=np.float32) + 1

    features, trail = x, []
    for _ in range(3):
        shape = features.shape
        features, indices = POOL(features)
        trail.append((indices, shape))
        print(f"pool    {shape} -> {features.shape}")

    values = np.sort(features.ravel())
    for indices, shape in reversed(trail):
        pooled = features.shape
        features = UNPOOL(features, indices, output_size=shape)
        print(f"unpool  {pooled} -> {features.shape}")

    kept = features > 0
    if not (np.array_equal(features[kept], x[kept]) and np.array_equal(np.sort(features[kept]), values)):
        raise SystemExit("a value is not at its original position")
    print(f"\nall {values.size} values are at their original positions, the other {np.sum(~kept)} are 0")


if __name__ == "__main__":
    main()
