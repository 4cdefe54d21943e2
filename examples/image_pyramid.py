"""Build a mean pyramid of an image: every level has half the size of the previous one, down to one pixel.

With `ceil_mode`, partial windows at the border average the pixels that they contain, so odd sizes lose
nothing.
"""

import numpy as np

import ndpool


def synthetic_image(height: int, width: int) -> np.ndarray:
    """Return rings on a ramp: detail that disappears level by level, and a gradient that remains."""
    y, x = np.mgrid[0:height, 0:width]
    rings = np.sin(np.hypot(y - height / 2, x - width / 2) / 9)
    return (rings + x / width).astype(np.float32)


def mean_pyramid(image: np.ndarray) -> list[np.ndarray]:
    """Return the image, its means over 2x2 blocks, the means of those, and so on down to one pixel."""
    levels = [image]
    while max(levels[-1].shape) > 1:
        levels.append(ndpool.pool(levels[-1], (2, 2), reduce="avg", ceil_mode=True))
    return levels


def main() -> None:
    """Print the sizes of the levels, and one level as characters."""
    shades = " .:-=+*#%@"
    levels = mean_pyramid(synthetic_image(180, 250))
    for number, level in enumerate(levels):
        print(f"level {number}: {level.shape[0]:3d} x {level.shape[1]:3d}   contrast {np.ptp(level):.3f}")
    small = levels[3]
    scaled = (small - small.min()) / np.ptp(small) * (len(shades) - 1)
    print("\nlevel 3, drawn with characters:")
    for row in scaled.round().astype(int):
        print("".join(shades[shade] for shade in row))


if __name__ == "__main__":
    main()
