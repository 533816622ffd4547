"""One federated algorithm a file, client and server half together; `algorithm.name` is the file's name."""
