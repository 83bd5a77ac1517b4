"""The daemon process: settings, wiring, command line."""
