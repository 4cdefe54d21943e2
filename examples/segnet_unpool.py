"""The pooling of a SegNet: an encoder pools and keeps the indices, the decoder unpools with them in reverse.

After the way down and back up every surviving value stands exactly where it stood in the input, which is
what lets such a network draw sharp borders. `output_size` tells odd sizes from the even ones that pool alike.
"""

import numpy as np

from ndpool import nn

POOL = nn.MaxPool2d(2, return_indices=True)
UNPOOL = nn.MaxUnpool2d(2)


def main() -> None:
    """Pool three times, unpool three times, and check that every value came back."""
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
        raise SystemExit("a value did not come back to its place")
    print(
        f"\nall {values.size} values stand where they came from, the other {np.sum(~kept)} positions hold 0"
    )


if __name__ == "__main__":
    main()
