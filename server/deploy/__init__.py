"""A deployed run: the strategy on real clients, client processes on this machine, the guard."""
