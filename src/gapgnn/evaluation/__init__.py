"""How results are measured."""
