"""Memory pressure levels. Pure functions of one tick's findings and the state of earlier ticks."""
