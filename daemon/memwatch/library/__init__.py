"""For training and inference code: nothing raises into the caller's step, nothing is set without being asked."""
