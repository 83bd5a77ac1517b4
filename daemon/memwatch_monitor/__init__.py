"""The loop: sample, judge, remember, publish."""
