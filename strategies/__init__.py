"""One federated algorithm a file, client and server half together; `algorithm.name` is the file's name."""

NOT_PLUGINS = frozenset({"exchange", "flower", "roster"})
