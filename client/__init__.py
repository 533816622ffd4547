"""The client's side: what runs beside private data."""
