"""Peers that lie: what they send is well-formed, and meant to do harm."""
