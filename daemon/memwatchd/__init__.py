"""The process: settings, wiring, command line."""
