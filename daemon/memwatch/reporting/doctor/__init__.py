"""Diagnosis of missing data: checks of the latest snapshot and of installed versions, with remedies."""
