"""What goes over the wire: our types to Flower's messages, payloads in pieces."""
