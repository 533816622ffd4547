"""What both programs need to start: errors as one line, memory, device, addresses, identities, join bundles."""
