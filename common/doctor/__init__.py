"""What `doctor` finds on a machine: checks, one function each, and how they are shown."""
