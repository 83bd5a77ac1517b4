"""From what drivers said to pools that add up and shares inside them: one module a maker, and what they have
in common in `relations`. Pure rules."""
