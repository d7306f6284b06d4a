"""What the private data is: the graph, where it comes from, how it is cut and split."""
