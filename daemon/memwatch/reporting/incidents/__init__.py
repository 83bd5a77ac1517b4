"""Words about an incident: its record, its cause, its killer and the sentence."""
