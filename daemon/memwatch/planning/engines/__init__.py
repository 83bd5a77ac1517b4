"""Launch lines of inference engines: options with which its arithmetic gives the plan."""
