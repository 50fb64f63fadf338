"""Measurements: ratios side by side in one run, never an assertion on seconds."""
