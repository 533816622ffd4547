"""The page of watch in a real browser; `make test-browser` runs these."""
