"""Memory that one epoch frees is there for the next one."""

import resource
import subprocess
import sys

import pytest

from gapgnn import memory as pages

# In a process of its own: what others have freed before decides where the heap ends.
EPOCHS = """
import resource
import torch
from gapgnn.memory import pages_kept

def epoch():
    held = [torch.ones(1 << 19) for _ in range(20)]

with pages_kept():
    for _ in range(5):
        epoch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        epoch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES_OF_AN_EPOCH = 20 * (4 << 19) // resource.getpagesize()


def faults() -> int:
    command = [sys.executable, "-c", EPOCHS]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(pages._mallopt() is None, reason="no glibc")
def test_epochs_do_not_ask_the_system_for_the_same_memory_again():
    assert faults() < PAGES_OF_AN_EPOCH


def test_without_glibc_nothing_happens(monkeypatch):
    def refuse(_name):
        raise OSError

    monkeypatch.setattr(pages.ctypes, "CDLL", refuse)
    with pages.pages_kept():
        assert pages._mallopt() is None
