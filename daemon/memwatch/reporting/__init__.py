"""Words about a machine, live or recorded: sentences, maps, diagnosis, reports. No loop."""
