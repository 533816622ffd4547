"""All clients in one process, with the deployed algorithm code."""
