"""What tasks are made of: losses, networks, tables, images, and how data is dealt out."""
