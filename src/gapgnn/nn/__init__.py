"""The networks: layers with a replica axis, and the models built from them."""
