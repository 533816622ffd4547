"""Benchmarks: ratios measured in one run, so that they hold on any machine. `make bench` runs them all."""
