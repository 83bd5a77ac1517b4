"""Library for training and inference code. It never raises into a training step and changes no settings unasked."""
