"""The tools that a run can be told to: one file each, found by its name."""
