"""The server's side: simulate or run a federation, and report on it."""
