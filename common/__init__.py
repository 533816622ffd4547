"""What server and client share: the data of a round, configuration, sparsity, tasks."""
