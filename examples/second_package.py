"""A method in a second package: installed by pip, found by its entry point, charged like ours.

The package is tests/fixtures/gapgnn_vote, which docs/how-to/extending.md writes line by line: a
method `poll` in 40 lines, in which every training node sends one noisy vote for its class. Here it
is installed into a folder of its own, and then trained by the command line and from Python.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tests" / "fixtures" / "gapgnn_vote"

# pip writes into the source folder, so it is given a copy.
source = shutil.copytree(PACKAGE, "source/gapgnn_vote", dirs_exist_ok=True)
options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", "site"]
subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)

# The command line knows the method, its options and its help.
environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["site", *sys.path[1:]])}
command = [sys.executable, "-m", "gapgnn", "train", "poll", "--epsilon", "2", "--no-save"]
subprocess.run([*command, "--no-compare"], check=True, env=environment)

# And so does Python.
sys.path.insert(0, "site")
from gapgnn import load_dataset  # noqa: E402
from gapgnn.methods import method_class  # noqa: E402

graph = load_dataset("social")
model = method_class("poll")(level="edge", epsilon=2.0)
model.fit(graph)
print(f"{model}: test accuracy {model.score(graph):.3f}")
print(model.card_)
