"""The command line: options in, one call into the library, a table or one JSON object out."""
