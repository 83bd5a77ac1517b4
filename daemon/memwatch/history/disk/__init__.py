"""History on disk: bounded files that a power cut, a full disk or a flipped bit can shorten and never spoil."""
