"""Launch lines of inference engines, one module each: options with which its arithmetic gives the plan."""
