"""Vectors to bytes and back, near the entropy limit, never trusting what is read."""
