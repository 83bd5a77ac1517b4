"""For training and inference code. Nothing here raises into the caller's step, and nothing is set without being asked."""
