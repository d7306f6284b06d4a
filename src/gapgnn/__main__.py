"""`python -m gapgnn`: the command line, for where its script is not on the PATH."""

from __future__ import annotations

from gapgnn.cli.main import run

if __name__ == "__main__":
    run()
