"""One flat vector: TopK, exact sums, entries and blocks, a module's parameters in it."""
