"""Follow a handful of other machines: their ticks, their last words, their silence. No input or output."""
