"""`python -m gapgnn`: the command line, for where its script is not on the PATH."""

from __future__ import annotations

from gapgnn.cli import main

if __name__ == "__main__":
    main.run()
