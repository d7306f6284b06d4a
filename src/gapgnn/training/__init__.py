"""One training loop, private or not, and who watches it."""
