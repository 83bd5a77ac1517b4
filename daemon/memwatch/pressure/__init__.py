"""How near the end is. Pure rules: what one tick found and what is remembered in, verdicts out."""
