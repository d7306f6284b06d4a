"""Every door to private data, and its price."""
