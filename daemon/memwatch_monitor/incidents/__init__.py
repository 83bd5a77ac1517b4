"""Incidents: who took the memory, what was killed and by whom, and what came back."""
