"""Pages of docs/reference, generated from the code."""
