"""The studies of the paper's results: one file each, found by its name."""
