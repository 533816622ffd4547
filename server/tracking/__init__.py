"""A run told to another tool as it goes (`--track`): what a tracker is, and the thread that each has."""
