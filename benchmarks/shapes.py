"""Prints the shapes of the suites. The table is in the wheel (hopgemm._shapes), for `hopgemm bench`."""

from hopgemm._shapes import SUITES, format_shape

if __name__ == "__main__":
    for name, shapes in SUITES.items():
        print(f"{name} ({len(shapes)}): {' '.join(map(format_shape, shapes))}")
