"""A cluster that cannot be had is one line that says what to do."""

from __future__ import annotations

import pytest

from gapgnn.cluster import RayCluster
from gapgnn.errors import UnavailableError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


def test_an_address_that_does_not_answer_is_one_line():
    pytest.importorskip("ray")
    with pytest.raises(UnavailableError, match="does not answer") as caught:
        RayCluster("127.0.0.1:1").__enter__()
    assert "\n" not in str(caught.value)


def test_without_ray_there_is_one_line_that_says_what_to_install(monkeypatch):
    import builtins

    real = builtins.__import__

    def without_ray(name, *rest, **more):
        if name == "ray" or name.startswith("ray."):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    with pytest.raises(UnavailableError, match=r"gapgnn\[ray\]"):
        RayCluster("local").__enter__()
