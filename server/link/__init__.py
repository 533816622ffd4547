"""The gRPC link to clients: Flower's Fleet API in our process, messages on their way, who may join."""
