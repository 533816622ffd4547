"""The losses that tasks are made of, each for one client or for many as one batch."""
