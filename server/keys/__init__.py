"""Who may join: the folder of a federation's keys, and certificates."""
