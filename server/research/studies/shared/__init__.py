"""What studies on the same data have in common."""
