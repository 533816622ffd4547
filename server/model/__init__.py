"""A finished model: its file and its card, predictions with it, and its exports to other programs."""
