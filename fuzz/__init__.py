"""Fuzzers of all that reads bytes of others, guided by the code that inputs reach. `make fuzz` runs them."""
