"""Sizes of terminals for tests: the smallest that is usual, and large screens."""

SIZES = ((80, 24), (100, 30), (132, 43), (200, 50), (300, 80))
