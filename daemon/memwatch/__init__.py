"""Memory truth for machines with GPUs: pools that add up, shares that are inside them."""

__version__ = "0.1.0"
