"""Many simulated runs: the search for settings, and studies of the paper's results."""
